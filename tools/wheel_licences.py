"""Adds to a wheel the licences of the libraries that auditwheel has copied into it.

  wheel_licences.py [--sysroot DIR] WHEEL OUT     --sysroot: the libraries are of tools/arm-sysroot's folder

They are the copyright files of Debian's packages, with the texts that those point to, in licenses/libraries/ of the wheel's
.dist-info; README there names each library's package and its source. KNOWN lists the sources whose licence has been read and
found to allow what a wheel does: to copy the library as it is. A library of any other source is an error, and so is a module
that needs more than the wheel has (CUDA, MPI)."""
import argparse
import base64
import hashlib
import os
import re
import subprocess
import sys
import zipfile

KNOWN = {
    "onednn": "Apache-2.0; its assembler (Xbyak) BSD-3-Clause",
    "ocl-icd": "BSD-2-Clause",
    "gcc-12": "GPL-3.0-or-later with the GCC Runtime Library Exception 3.1",
    "sentencepiece": "Apache-2.0; parts of others MIT, BSD-3-Clause and Unicode",
    "jansson": "MIT",
    "pcre2": "BSD-3-Clause with the exemption for binary libraries",
    "utf8proc": "MIT; its tables Unicode",
    "libxsmm": "BSD-3-Clause",
    "xxhash": "BSD-2-Clause (the header)",
    "node-chart.js": "MIT",
}
# What libwinnow.so has compiled in: a text in it that says so, the package, what it is.
WITHIN = [
    (b"libxsmm_", "libxsmm-dev", "libxsmm"),
    (b"Chart.js v", "libjs-chart.js", "Chart.js (in the pages of reports)"),
    (b"", "libxxhash-dev", "xxHash"),
]
COMMON = "/usr/share/common-licenses"


def stop(text):
    sys.exit(f"wheel_licences.py: {text}")


def output(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return done.stdout if done.returncode == 0 else ""


def source_of(package):
    """(source, its version) of an installed package."""
    found = output("dpkg-query", "-W", "-f", "${source:Package} ${source:Version}\n", package).split()
    return (found[0], found[1]) if found else stop(f"{package} is not installed, and its licence belongs in the wheel")


def owner(name, sysroot):
    """(package, source, version) of the library whose file is called `name`."""
    if sysroot:
        with open(os.path.join(sysroot, "files")) as files:
            for package, source, version, path in map(str.split, files):
                if os.path.basename(path) == name:
                    return package, source, version
        stop(f"{sysroot}/files: no package has {name}")
    package = output("dpkg-query", "-S", f"*/x86_64-linux-gnu/{name}").split(":")[0]
    return (package, *source_of(package)) if package else stop(f"{name}: no package has this library")


def licence(package, sysroot):
    for root in (sysroot, "") if sysroot else ("",):
        path = f"{root}/usr/share/doc/{package}/copyright"
        if os.path.exists(path):
            with open(path, "rb") as f:
                return f.read()
    stop(f"/usr/share/doc/{package}/copyright is missing")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sysroot", default="")
    parser.add_argument("wheel")
    parser.add_argument("out")
    asked = parser.parse_args()
    with zipfile.ZipFile(asked.wheel) as wheel:
        entries = [(info, wheel.read(info)) for info in wheel.infolist()]
    contents = {info.filename: data for info, data in entries}
    for name in contents:
        if re.search(r"/winnow-(cuda|mpi)\.so$", name):
            stop(f"{name}: such a module needs what no wheel may carry; leave WINNOW_CUDA and WINNOW_MPI off")

    found = []  # (what, package, source, version)
    for name in sorted(contents):
        carried = re.fullmatch(r"winnow_lm\.libs/(.+)-[0-9a-f]{8}(\.so[.0-9]*)", name)
        if carried:
            found.append((carried[1] + carried[2], *owner(carried[1] + carried[2], asked.sysroot)))
        elif name.startswith("winnow_lm.libs/") and not name.endswith("/"):
            stop(f"{name}: expected a library's name as auditwheel writes it")
    library = contents["winnow_lm/libwinnow.so"]
    found += [(what, package, *source_of(package)) for text, package, what in WITHIN if text in library]

    record = next(name for name in contents if name.endswith(".dist-info/RECORD"))
    folder = os.path.dirname(record) + "/licenses/libraries/"
    added, texts, lines = {}, set(), []
    for what, package, source, version in found:
        if source not in KNOWN:
            stop(f"{what} is of Debian's {source}: its licence is not among those that have been read (KNOWN)")
        lines.append(f"{what}\n  {KNOWN[source]}\n  Debian: {package}, source {source} {version}\n  {package}.copyright\n")
        text = licence(package, asked.sysroot)
        added[folder + package + ".copyright"] = text
        texts.update(re.findall(rf"{COMMON}/([A-Za-z0-9.+-]*[A-Za-z0-9])".encode(), text))
    for text in sorted(map(bytes.decode, texts)):
        with open(f"{COMMON}/{text}", "rb") as f:
            added[f"{folder}common-licenses/{text}"] = f.read()
    added[folder + "README"] = (
        "Libraries in this wheel: each as Debian's package has it, whose source Debian distributes.\n"
        f"{COMMON}/NAME in a copyright file is common-licenses/NAME here.\n\n" + "\n".join(lines)
    ).encode()

    rows = contents[record].decode().splitlines()
    for name, data in added.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.insert(-1, f"{name},sha256={digest},{len(data)}")
    with zipfile.ZipFile(asked.out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as out:
        for info, data in entries:
            if info.filename == record:
                continue
            info.compress_type = zipfile.ZIP_DEFLATED
            out.writestr(info, data, compresslevel=9)
        date = next(info.date_time for info, _ in entries if info.filename == record)
        for name, data in [*sorted(added.items()), (record, "\n".join(rows).encode() + b"\n")]:
            info = zipfile.ZipInfo(name, date)
            info.external_attr = 0o644 << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            out.writestr(info, data, compresslevel=9)
    print("make-wheel: carries " + ", ".join(what for what, *_ in found))


if __name__ == "__main__":
    main()
