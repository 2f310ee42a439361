"""Every dependency has a permissive licence and comes from the crates.io index. Reads `cargo metadata` on stdin."""

import json
import re
import sys

ALLOWED = {
    "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "BlueOak-1.0.0", "CC0-1.0", "CDLA-Permissive-2.0",
    "ISC", "MIT", "MIT-0", "OpenSSL", "Unicode-3.0", "Unlicense", "Zlib",
}
EXCEPTIONS = {"LLVM-exception"}


def permitted(expression):
    """Whether an SPDX expression can be met with allowed licences; the old "A/B" means "A OR B"."""
    tokens = re.findall(r"[()]|[^\s()]+", expression.replace("/", " OR "))
    position = 0

    def word():
        return tokens[position] if position < len(tokens) else None

    def take():
        nonlocal position
        position += 1
        return tokens[position - 1]

    def one():
        name = take()
        if name == "(":
            result = either()
            if word() != ")":
                raise ValueError(expression)
            take()
            return result
        result = name in ALLOWED
        if word() == "WITH":
            take()
            result = take() in EXCEPTIONS and result
        return result

    def both():
        result = one()
        while word() == "AND":
            take()
            result = one() and result
        return result

    def either():
        result = both()
        while word() == "OR":
            take()
            result = both() or result
        return result

    result = either()
    if position != len(tokens):
        raise ValueError(expression)
    return result


def check_itself():
    for good in ["MIT", "MIT OR GPL-3.0", "GPL-2.0/MIT", "(MIT OR GPL-2.0) AND ISC", "Apache-2.0 WITH LLVM-exception OR MIT"]:
        assert permitted(good), good
    for bad in ["GPL-3.0", "MIT AND GPL-3.0", "(MIT OR ISC) AND MPL-2.0", "MIT WITH Autoconf-exception-3.0"]:
        assert not permitted(bad), bad


def problems(packages):
    for package in packages:
        name = f"{package['name']} {package['version']}"
        source = package["source"]
        if source and not (source.startswith("registry+") and source.endswith("/crates.io-index")):
            yield f"{name} comes from {source}"
        if not package["license"] or not permitted(package["license"]):
            yield f"{name} is licensed {package['license']}"


check_itself()
every = json.load(sys.stdin)["packages"]
found = list(problems(every))
for line in found:
    print(line, file=sys.stderr)
print(f"{len(every)} packages, {len(found)} problems")
sys.exit(1 if found else 0)
