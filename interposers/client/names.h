/* Generated tables that are looked up by name or number. */
#ifndef SG_NAMES_H
#define SG_NAMES_H

struct sg_error_name { int value; const char *name, *text; }; /* sorted by value */
extern const struct sg_error_name sg_error_names[];
extern const unsigned sg_error_name_count;
const char *sg_error_name(int value); /* NULL: no such error */

struct sg_entry { const char *symbol; int version; void *function, *per_thread; }; /* sorted by symbol, version */
extern const struct sg_entry sg_entries[];
extern const unsigned sg_entry_count;

#endif
