/* The fixed binary tree over the ranks of a communicator, by which reductions are computed (pure).
 *
 * The tree over n leaves joins the tree of the first m with that of the rest; m is the largest power of two below n
 * (as singularity_core.hal.Device.reduce_tree).  The order of joining depends on nothing else, so neither do the
 * bits of a result: a place (a device) may join the leaves that it holds, but only those of a whole subtree, and then
 * the *partial* takes the place of the subtree.
 *
 * A program is the tree in postorder, for a stack: an atom pushes its value; a join takes the two topmost, right above
 * left, and pushes left (+) right. */
#ifndef SG_TREE_H
#define SG_TREE_H

#include <stdint.h>

#define SG_TREE_MIXED UINT32_MAX
#define SG_TREE_STACK 12u /* values that a program over at most SG_TREE_LEAVES leaves has on its stack at once */
#define SG_TREE_LEAVES 1024u

/* An atom: all leaves first .. first + count - 1 lie on `place`; it is that place's atom number `index`, counted
 * from the left.  A join: count is 0. */
struct sg_tree_step { uint32_t first, count, place, index; };

/* Where all the leaves lie; SG_TREE_MIXED: on several places.  `places`: by leaf. */
uint32_t sg_tree_place(const uint32_t *places, uint32_t first, uint32_t count);
/* The whole tree over `count` leaves from `first` on.  merge: atoms are maximal subtrees that lie on one place;
 * else leaves.  Writes at most 2 * count - 1 steps, and returns how many.  1 <= count <= SG_TREE_LEAVES. */
uint32_t sg_tree_program(const uint32_t *places, uint32_t first, uint32_t count, int merge, struct sg_tree_step *out);
/* The most values that the program has on its stack. */
uint32_t sg_tree_depth(const struct sg_tree_step *steps, uint32_t count);

#endif
