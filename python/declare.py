#!/usr/bin/env python3
"""Writes the Python package's declarations of the C API from the headers themselves, so that the two cannot differ.

  python/declare.py INCLUDE OUT.py             winnow_lm/_api.py, which cffi reads when the package is imported
  python/declare.py INCLUDE --check CC         every struct's size and offsets, every enum's values, as cffi has laid
                                               them out, against what the C compiler CC says

INCLUDE: the folder with winnow/winnow.h. cffi's parser can read a header's declarations as they are, once comments and
preprocessor lines are removed. Of the #defines only those with a whole number are kept, for lengths of arrays."""
import os
import re
import subprocess
import sys
import tempfile

import cffi

MARKS = re.compile(r"\b(?:WN_STABLE_BEGIN|WN_EXPERIMENTAL_BEGIN|WN_API_BEGIN|WN_API_END)\b")


def without_comments(text):
    return re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.S)


def declarations(include, header="winnow/winnow.h", seen=None):
    """The text of a header and of the winnow headers that it includes, each once and before what needs it."""
    seen = set() if seen is None else seen
    if header in seen:
        return ""
    seen.add(header)
    with open(os.path.join(include, header), encoding="utf-8") as f:
        text = without_comments(f.read()).replace("\\\n", " ")
    out = []
    for line in text.split("\n"):
        number = re.fullmatch(r"\s*#\s*define\s+(WN_\w+)\s+(\d+)\s*", line)
        inner = re.fullmatch(r'\s*#\s*include\s+"(winnow/\w+\.h)"\s*', line)
        if number:
            out.append(f"#define {number[1]} {number[2]}")
        elif inner:
            out.append(declarations(include, inner[1], seen))
        elif not line.lstrip().startswith("#"):
            out.append(MARKS.sub("", line))
    return "\n".join(line for line in out if line.strip())


def parsed(include):
    ffi = cffi.FFI()
    ffi.set_source("winnow_lm._api", None)
    ffi.cdef(declarations(include))
    return ffi


def fields_of(ctype, before=""):
    """(name, offset) of each field, including fields of unnamed structs."""
    for name, field in ctype.fields or ():
        yield before + name, field
        if field.type.kind == "struct" and not field.type.cname.startswith("wn_") and "$" in repr(field.type):
            for inner, f in fields_of(field.type, before + name + "."):
                yield inner, f


def check(include, compiler):
    text = declarations(include)
    ffi = cffi.FFI()
    ffi.cdef(text)
    names, _, _ = ffi.list_types()
    lines, structs, fields, values = ["#include <stddef.h>", "#include <winnow/winnow.h>"], 0, 0, 0
    for name in names:
        ctype = ffi.typeof(name)
        if ctype.kind == "struct" and ctype.fields is not None:
            structs += 1
            lines.append(f'_Static_assert(sizeof({name}) == {ffi.sizeof(ctype)}, "{name}: size");')
            for field, _ in fields_of(ctype):
                fields += 1
                offset = ffi.offsetof(name, *field.split("."))
                lines.append(f'_Static_assert(offsetof({name}, {field}) == {offset}, "{name}.{field}: offset");')
                size = ffi.sizeof(field_type(ctype, field))
                lines.append(f'_Static_assert(sizeof((({name} *)0)->{field}) == {size}, "{name}.{field}: size");')
        elif ctype.kind == "enum":
            for value, element in ctype.elements.items():
                values += 1
                lines.append(f'_Static_assert({element} == {value}, "{element}");')
    if structs < 50 or fields < 400 or values < 50:
        sys.exit(f"declare.py: only {structs} structs, {fields} fields, {values} values were found")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "check.c")
        with open(path, "w", encoding="utf-8") as f:
            f.write("\n".join(lines) + "\n")
        done = subprocess.run([compiler, "-std=c17", "-Werror", "-fsyntax-only", "-I" + include, path], stderr=subprocess.PIPE,
                              text=True)
    if done.returncode:
        sys.exit("declare.py: the declarations differ from the compiler's:\n" + done.stderr)
    print(f"{structs} structs, {fields} fields, {values} values of enums")


def field_type(ctype, path):
    for name in path.split("."):
        ctype = dict(ctype.fields)[name].type
    return ctype


def main(arguments):
    if len(arguments) == 3 and arguments[1] == "--check":
        return check(arguments[0], arguments[2])
    if len(arguments) != 2:
        sys.exit(__doc__)
    ffi = parsed(arguments[0])
    # cffi names the module by set_source; what it writes is plain Python.
    part = arguments[1] + ".part"
    ffi.emit_python_code(part)
    os.replace(part, arguments[1])


main(sys.argv[1:])
