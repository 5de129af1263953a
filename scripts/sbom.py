#!/usr/bin/env python3
"""What the binary is made of, as a CycloneDX list: every crate that is linked, with version, licence and checksum.

usage: scripts/sbom.py > forerun.cdx.json

It is read from Cargo.lock and `cargo metadata` for this machine's target, so that it is what `cargo build` links.
"""
import json
import os
import subprocess
import tomllib

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def metadata():
    host = subprocess.run(["rustc", "-vV"], capture_output=True, text=True, check=True).stdout
    target = next(line.split(": ")[1] for line in host.splitlines() if line.startswith("host: "))
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", target]
    return json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)


def linked(graph):
    """The ids of all packages that the program depends on, without those for building and testing alone."""
    nodes = {node["id"]: node for node in graph["resolve"]["nodes"]}
    waiting, seen = [graph["resolve"]["root"]], set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for dependency in nodes[name]["deps"]:
            if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                waiting.append(dependency["pkg"])
    return seen


def main():
    graph = metadata()
    with open(os.path.join(ROOT, "Cargo.lock"), "rb") as lock:
        locked = {(p["name"], p["version"]): p.get("checksum") for p in tomllib.load(lock)["package"]}
    wanted = linked(graph)
    components = []
    for package in sorted((p for p in graph["packages"] if p["id"] in wanted), key=lambda p: (p["name"], p["version"])):
        name, version = package["name"], package["version"]
        component = {"type": "library", "name": name, "version": version}
        if package["source"]:
            component["purl"] = f"pkg:cargo/{name}@{version}"
        if package["license"]:
            component["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
        if locked.get((name, version)):
            component["hashes"] = [{"alg": "SHA-256", "content": locked[name, version]}]
        components.append(component)
    root = next(p for p in graph["packages"] if p["id"] == graph["resolve"]["root"])
    about = {"type": "application", "name": root["name"], "version": root["version"]}
    print(json.dumps({"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
                      "metadata": {"component": about}, "components": components}, indent=1))


if __name__ == "__main__":
    main()
