"""Statements, literals and variables of PTX: what the parser of functions stands on."""

from __future__ import annotations

import re
import struct
from bisect import bisect_right

from .errors import invalid, unsupported
from .syntax import TYPE_SIZE, FloatImm, Variable

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
NAME = r"[A-Za-z_$%][\w$]*"
DECLARATION = re.compile(rf"\s*({NAME})\s*(?:<(\d+)>|((?:\[\s*\w*\s*\])+))?\s*")
_INTEGER = re.compile(r"[+-]?\s*(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?$")
_FLOAT_HEX = re.compile(r"0([fFdD])([0-9a-fA-F]+)$")
_FLOAT_DEC = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+)([eE][+-]?\d+)?$")


def parse_integer(text: str) -> int | None:
    """An integer literal, with sign, or None."""
    match = _INTEGER.match(text)
    if match is None:
        return None
    digits = match[1]
    value = (
        int(digits, 0) if digits[:2].lower() in ("0x", "0b") else int(digits, 8 if digits[0] == "0" else 10)
    )
    return -value if text[0] == "-" else value


def float_literal(text: str) -> FloatImm | None:
    match = _FLOAT_HEX.match(text)
    if match is not None:
        width = 32 if match[1] in "fF" else 64
        return FloatImm(int(match[2], 16), width) if len(match[2]) == width // 4 else None
    if _FLOAT_DEC.match(text):
        bits: int = struct.unpack("<Q", struct.pack("<d", float(text)))[0]
        return FloatImm(bits, 64)
    return None


class Scanner:
    """A cursor in the text."""

    def __init__(self, text: str) -> None:
        if "\0" in text:
            text = text[: text.index("\0")]
        if "/" in text:
            text = _COMMENT.sub(lambda m: "\n" * m[0].count("\n"), text)
        self.text = text
        self.at = 0
        self.newlines = [i for i, c in enumerate(text) if c == "\n"] if "\n" in text else []

    # ---- positions --------------------------------------------------------------------------------
    def line(self, at: int | None = None) -> int:
        return bisect_right(self.newlines, (self.at if at is None else at) - 1) + 1

    def skip_space(self) -> None:
        text, at, end = self.text, self.at, len(self.text)
        while at < end and text[at] in " \t\r\n":
            at += 1
        self.at = at

    def statement(self) -> str:
        """The text up to the next `;`, which is consumed."""
        end = self.text.find(";", self.at)
        if end < 0:
            raise invalid("the text ends inside a statement (missing `;`)", self.line())
        found = self.text[self.at : end]
        self.at = end + 1
        return found.strip()

    def rest_of_line(self) -> str:
        end = self.text.find("\n", self.at)
        end = len(self.text) if end < 0 else end
        found = self.text[self.at : end]
        self.at = end
        return found.strip()

    # ---- variables --------------------------------------------------------------------------------
    def parse_variables(self, text: str, line: int, extern: bool = False) -> list[Variable]:
        head, _, init = text.partition("=")
        words = re.compile(r"\s*\.([\w:]+)(?:\s+(\d+)(?=\s))?")
        space = kind = ""
        align, vector, at = 0, 1, 0
        managed = False
        while (match := words.match(head, at)) is not None:
            word = match[1]
            if word in ("global", "const", "shared", "local", "param", "reg"):
                space = word
            elif word == "align":
                align = int(match[2] or 0)
            elif word in ("v2", "v4"):
                vector = int(word[1])
            elif word in TYPE_SIZE:
                kind = word
            elif word == "ptr" or word in ("attribute", "unified"):
                managed = True
            elif word in ("shared::cta", "texref", "samplerref", "surfref", "shared::cluster"):
                raise unsupported(f"`.{word}` variables", line)
            else:
                raise unsupported(f"`.{word}` in a declaration", line)
            at = match.end()
            if word == "attribute":
                break
        if managed and space in ("global", "const"):
            raise unsupported("`.attribute` on a variable (managed memory)", line)
        if not kind:
            raise invalid(f"declaration without a type: `{text[:60]}`", line)
        if space == "const" and "[" in text[:at] and "const[" in text:
            raise unsupported("numbered constant banks", line)
        return [
            self.variable(part, space, kind, align, vector, line, init, extern)
            for part in self.split_commas(head[at:])
        ]

    def variable(
        self, text: str, space: str, kind: str, align: int, vector: int, line: int, init: str, extern: bool
    ) -> Variable:
        match = DECLARATION.fullmatch(text)
        if match is None:
            raise invalid(f"malformed declaration `{text.strip()}`", line)
        unit = TYPE_SIZE[kind] * vector
        count = 1
        dimensions = re.findall(r"\[\s*(\w*)\s*\]", match[3] or "")
        for dimension in dimensions:
            count *= parse_integer(dimension) or 0 if dimension else 0
        variable = Variable(match[1], space, kind, align or unit, count * unit, line, extern=extern)
        if init:
            self.initialise(variable, init, TYPE_SIZE[kind], bool(dimensions) and not dimensions[0])
        return variable

    def initialise(self, variable: Variable, text: str, unit: int, unsized: bool) -> None:
        items = self.split_commas(text.replace("{", " ").replace("}", " "))
        data = bytearray()
        for item in items:
            item = item.strip()
            if not item:
                continue
            integer = parse_integer(item)
            if integer is not None:
                data += (integer & ((1 << 8 * unit) - 1)).to_bytes(unit, "little")
            elif (literal := float_literal(item)) is not None:
                data += self.float_bytes(literal, variable.type)
            else:
                offset, symbol, addend = len(data), item, 0
                match = re.fullmatch(rf"(?:generic\s*\(\s*)?({NAME})\s*\)?\s*(?:([+-])\s*(\w+))?", item)
                if match is None or unit != 8:
                    raise unsupported(f"initialiser `{item}`", variable.line)
                symbol = match[1]
                addend = (parse_integer(match[3]) or 0) * (-1 if match[2] == "-" else 1) if match[3] else 0
                variable.fixups.append((offset, symbol, addend))
                data += bytes(8)
        if unsized:
            variable.size = len(data)
        if len(data) > variable.size:
            raise invalid(f"initialiser of `{variable.name}` is longer than the variable", variable.line)
        data += bytes(variable.size - len(data))
        variable.data = bytes(data) if any(data) or variable.fixups else None

    @staticmethod
    def float_bytes(literal: FloatImm, kind: str) -> bytes:
        if kind == "f64":
            bits = (
                literal.bits
                if literal.width == 64
                else struct.unpack(
                    "<Q", struct.pack("<d", struct.unpack("<f", struct.pack("<I", literal.bits))[0])
                )[0]
            )
            return int(bits).to_bytes(8, "little")
        if literal.width == 64:
            return struct.pack("<f", struct.unpack("<d", struct.pack("<Q", literal.bits))[0])
        return literal.bits.to_bytes(4, "little")

    @staticmethod
    def split_commas(text: str) -> list[str]:
        """Splits at commas outside brackets and braces."""
        if "{" not in text and "[" not in text and "(" not in text:
            return text.split(",") if text.strip() else []
        parts, depth, start = [], 0, 0
        for i, c in enumerate(text):
            if c in "{[(":
                depth += 1
            elif c in "}])":
                depth -= 1
            elif c == "," and depth == 0:
                parts.append(text[start:i])
                start = i + 1
        parts.append(text[start:])
        return parts
