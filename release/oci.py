#!/usr/bin/env python3
"""Packs folders as archives whose bytes depend only on the files and SOURCE_DATE_EPOCH.

Anybody can then build a commit again and compare the digests with those of a release.

  oci.py tar ROOT PREFIX ARCHIVE                     a .tar.gz with all names under PREFIX/
  oci.py image ROOT DOCKERFILE ARCHIVE NAME=VALUE... an OCI image layout as .tar; prints the digest

An image has one layer, the files of ROOT, and the settings of the last stage of DOCKERFILE.
NAME=VALUE sets an ARG of that stage. ARCHITECTURE and TAG must be among them.
"""
import gzip
import hashlib
import io
import json
import os
import pathlib
import shlex
import string
import sys
import tarfile
import time

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


def entry(info, epoch):
    """The entry with a fixed time and owner, because these differ between machines."""
    info.mtime, info.uid, info.gid, info.uname, info.gname = epoch, 0, 0, "", ""
    return info


def tar_folder(root, epoch, prefix=""):
    """A tar of a folder, in the order of the names. Files with the same inode become hard links."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(root.rglob("*")):
            name = f"{prefix}{path.relative_to(root)}"
            archive.add(path, name, recursive=False, filter=lambda info: entry(info, epoch))
    return buffer.getvalue()


def tar_files(files, epoch):
    """A tar of `files`: a dictionary from names to bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in sorted(files):
            info = tarfile.TarInfo(name)
            info.size = len(files[name])
            archive.addfile(entry(info, epoch), io.BytesIO(files[name]))
    return buffer.getvalue()


def settings(dockerfile, arguments):
    """The image configuration in a Dockerfile's last stage. Instructions take one line each."""
    config = {"Env": [], "ExposedPorts": {}, "Labels": {}}
    for line in dockerfile.rpartition("\nFROM scratch\n")[2].splitlines():
        directive, _, value = line.partition(" ")
        value = string.Template(value).safe_substitute(arguments)
        if directive == "ENV":
            config["Env"] += shlex.split(value)
        elif directive == "LABEL":
            config["Labels"].update(word.split("=", 1) for word in shlex.split(value))
        elif directive == "EXPOSE":
            config["ExposedPorts"].update({f"{port}/tcp": {} for port in value.split()})
        elif directive == "ENTRYPOINT":
            config["Entrypoint"] = json.loads(value)
        elif directive in ("USER", "WORKDIR"):
            config["User" if directive == "USER" else "WorkingDir"] = value
        elif directive not in ("", "ARG", "COPY"):
            raise SystemExit(f"oci.py: the Dockerfile has {directive}, which this script does not support")
    return config


def image(layer, config, arguments, epoch):
    """The files of an OCI image layout, and the digest of its manifest."""
    files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}'}

    def blob(data, kind, **more):
        digest = hashlib.sha256(data).hexdigest()
        files[f"blobs/sha256/{digest}"] = data
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data), **more}

    def document(value):
        return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()

    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch))
    platform = {"architecture": arguments["ARCHITECTURE"], "os": "linux"}
    configuration = blob(document({
        **platform, "created": created, "config": config,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        "history": [{"created": created, "created_by": "release/build"}],
    }), CONFIG)
    manifest = blob(document({
        "schemaVersion": 2, "mediaType": MANIFEST, "config": configuration,
        "layers": [blob(gzip.compress(layer, mtime=0), LAYER)], "annotations": config["Labels"],
    }), MANIFEST, platform=platform, annotations={"org.opencontainers.image.ref.name": arguments["TAG"]})
    files["index.json"] = document({"schemaVersion": 2, "manifests": [manifest]})
    return files, manifest["digest"]


def main(command, root, *rest):
    epoch = int(os.environ["SOURCE_DATE_EPOCH"])
    root = pathlib.Path(root)
    if command == "tar":
        prefix, archive = rest
        pathlib.Path(archive).write_bytes(gzip.compress(tar_folder(root, epoch, f"{prefix}/"), mtime=0))
    elif command == "image":
        dockerfile, archive, *words = rest
        arguments = dict(word.split("=", 1) for word in words)
        config = settings(pathlib.Path(dockerfile).read_text(), arguments)
        files, digest = image(tar_folder(root, epoch), config, arguments, epoch)
        pathlib.Path(archive).write_bytes(tar_files(files, epoch))
        print(digest)
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:])
