#!/usr/bin/env python3
"""Prints the software bill of materials of static programs as SPDX 2.3 JSON: sbom.py TARGET COMMIT PROGRAM...

It lists each crate that cargo links into one of the programs for TARGET, with the licence that the
crate declares and the checksum in Cargo.lock. Crates that only run during the build, such as build
scripts and macros, are not listed. The standard library is one package, since it is linked as well.
"""
import json
import os
import pathlib
import subprocess
import sys
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
REGISTRY = "registry+https://github.com/rust-lang/crates.io-index"


def output(*command):
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def tree(target, program):
    """The packages of a program as (name, version) with their licences, and their dependencies."""
    text = output("cargo", "tree", "--locked", "--package", program, "--target", target,
                  "--edges", "normal,no-proc-macro", "--prefix", "depth", "--format", "\t{p}\t{l}")
    licences, edges, above = {}, set(), []
    for line in text.splitlines():
        depth, package, licence = line.split("\t")
        name, version = package.split()[:2]
        key = name, version.removeprefix("v")
        # "(*)" marks a package whose dependencies cargo has listed further up.
        licences[key] = licence.removesuffix(" (*)")
        above[int(depth):] = [key]
        edges.update(zip(above[-2:-1], above[-1:]))
    return licences, edges


def reference(package):
    return "SPDXRef-" + "-".join(package).replace("_", "-").replace("+", "-")


def entry(package, licence, locked):
    """A package of SPDX. In Cargo's old syntax, a slash separates alternative licences."""
    name, version = package
    fields = {
        "SPDXID": reference(package),
        "name": name,
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": " OR ".join(part.strip() for part in licence.split("/")) or "NOASSERTION",
        "copyrightText": "NOASSERTION",
    }
    if locked.get("source") == REGISTRY:
        fields["downloadLocation"] = f"https://static.crates.io/crates/{name}/{name}-{version}.crate"
        fields["checksums"] = [{"algorithm": "SHA256", "checksumValue": locked["checksum"]}]
        fields["externalRefs"] = [{
            "referenceCategory": "PACKAGE-MANAGER",
            "referenceType": "purl",
            "referenceLocator": f"pkg:cargo/{name}@{version}".replace("+", "%2B"),
        }]
    elif "source" in locked:
        raise SystemExit(f"sbom.py: {name} is from {locked['source']}, which has no checksum")
    return fields


def relationship(source, kind, target):
    return {"spdxElementId": source, "relationshipType": kind, "relatedSpdxElement": target}


def main(target, commit, *programs):
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    locked = {(package["name"], package["version"]): package for package in lock["package"]}
    licences, edges = {}, set()
    for program in programs:
        more_licences, more_edges = tree(target, program)
        licences.update(more_licences)
        edges.update(more_edges)
    tops = sorted(package for package in licences if package[0] in programs)
    standard = "rust-std", output("rustc", "--version").split()[1]
    licences[standard] = "MIT OR Apache-2.0"
    locked[standard] = {}
    relations = [relationship("SPDXRef-DOCUMENT", "DESCRIBES", reference(package)) for package in tops]
    relations += [relationship(reference(package), "STATIC_LINK", reference(standard)) for package in tops]
    relations += [relationship(reference(one), "DEPENDS_ON", reference(other)) for one, other in sorted(edges)]
    version = tops[0][1]
    epoch = int(os.environ["SOURCE_DATE_EPOCH"])
    json.dump({
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"porch-fn-{version}-{target}",
        "documentNamespace": f"https://spdx.org/spdxdocs/porch-fn-{version}-{target}-{commit}",
        "creationInfo": {
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch)),
            "creators": ["Tool: porch-fn-sbom"],
        },
        "packages": [entry(package, licences[package], locked[package]) for package in sorted(licences)],
        "relationships": relations,
    }, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main(*sys.argv[1:])
