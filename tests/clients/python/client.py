"""Calls a function evaluator with grpcio, which uses gRPC's C core and no code of
grpc-go. Flags and output are those of grpcgo (see README.md).

The messages are declared here and not generated, so that no protoc is needed.
"""

import argparse
import collections
import json
import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

METHOD = "/evaluator.FunctionEvaluator/EvaluateFunction"


def declare_messages():
    """Returns the classes of the request and the response."""
    field = descriptor_pb2.FieldDescriptorProto
    proto = descriptor_pb2.FileDescriptorProto(
        name="evaluator.proto", package="evaluator", syntax="proto3"
    )

    def add(message, fields):
        declared = proto.message_type.add(name=message)
        for number, (name, kind) in enumerate(fields, start=1):
            declared.field.add(name=name, number=number, type=kind, label=field.LABEL_OPTIONAL)

    add(
        "EvaluateFunctionRequest",
        [
            ("resource_list", field.TYPE_BYTES),
            ("image", field.TYPE_STRING),
            ("tag", field.TYPE_STRING),
        ],
    )
    add(
        "EvaluateFunctionResponse",
        [("resource_list", field.TYPE_BYTES), ("log", field.TYPE_BYTES)],
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(proto)
    return [
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"evaluator.{message.name}"))
        for message in proto.message_type
    ]


Request, Response = declare_messages()
Answer = collections.namedtuple("Answer", "code message resource_list log")


def duration(text):
    """Converts a Go duration with one unit, such as 500ms, 2s or 5m, to seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h)|0", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration; write 500ms, 2s or 5m")
    if text == "0":
        return 0.0
    return float(match[1]) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[match[2]]


def parse_flags():
    parser = argparse.ArgumentParser(description="Calls a function evaluator over gRPC.")
    parser.add_argument("--addr", default="localhost:9445", help="address of the evaluator")
    parser.add_argument("--image", required=True, help="reference of the function's image")
    parser.add_argument("--tag", default="", help="semver constraint in the field tag")
    parser.add_argument("--in", dest="input", help="file with the resource list (default stdin)")
    parser.add_argument("--out", help="file for the answer's resource list")
    parser.add_argument("--timeout", type=duration, default=0.0, help="deadline of each call; 0: no deadline")
    parser.add_argument("--n", type=int, default=1, help="calls to make, all on one connection")
    parser.add_argument("--c", type=int, default=1, help="calls in flight at a time")
    parser.add_argument("--gzip", action="store_true", help="compress requests")
    parser.add_argument(
        "--max-message", type=int, default=6291456, help="limit in bytes for each message, both ways"
    )
    parser.add_argument(
        "--max-metadata",
        type=int,
        default=0,
        help="limit in bytes for a response's headers or trailers, including the error text;"
        " 0: grpcio's limits, which refuse some above 8 KiB and all above 16 KiB",
    )
    flags = parser.parse_args()
    if flags.n < 1 or flags.c < 1:
        parser.error("--n and --c must be at least 1")
    return flags


def open_channel(flags):
    options = [
        ("grpc.max_send_message_length", flags.max_message),
        ("grpc.max_receive_message_length", flags.max_message),
        # A proxy in the environment must not affect a test.
        ("grpc.enable_http_proxy", 0),
        # Porch's client does not retry. By default, grpcio does.
        ("grpc.enable_retries", 0),
    ]
    if flags.max_metadata:
        options += [
            ("grpc.max_metadata_size", flags.max_metadata),
            ("grpc.absolute_max_metadata_size", flags.max_metadata),
        ]
    compression = grpc.Compression.Gzip if flags.gzip else grpc.Compression.NoCompression
    return grpc.insecure_channel(flags.addr, options=options, compression=compression)


def call(evaluate, request, timeout):
    try:
        response = evaluate(request, timeout=timeout or None)
    except grpc.RpcError as error:
        return Answer(error.code().name, error.details() or "", b"", b"")
    return Answer("OK", "", response.resource_list, response.log)


class Answers:
    """Keeps the first answer of each code, and compares later answers with the first.
    Later answers are not kept, because they may be large."""

    def __init__(self):
        self.lock = threading.Lock()
        self.count = collections.Counter()
        self.first = {}
        self.equal = True

    def add(self, answer):
        with self.lock:
            self.count[answer.code] += 1
            first = self.first.setdefault(answer.code, answer)
            if (answer.message, answer.resource_list) != (first.message, first.resource_list):
                self.equal = False

    def report(self, elapsed):
        ok = self.first.get("OK")
        # Dictionaries keep their order, so this is the first failure.
        error = next((a for code, a in self.first.items() if code != "OK"), None)
        return {
            "code": error.code if error else "OK",
            "message": error.message if error else "",
            "count": dict(self.count),
            "equal": self.equal,
            "bytes": len(ok.resource_list) if ok else 0,
            "log": ok.log.decode(errors="replace") if ok else "",
            "elapsed_ms": round(elapsed * 1000, 3),
        }


def main():
    flags = parse_flags()
    try:
        if flags.input:
            with open(flags.input, "rb") as file:
                resource_list = file.read()
        else:
            resource_list = sys.stdin.buffer.read()
    except OSError as error:
        sys.exit(fail(error))

    request = Request(resource_list=resource_list, image=flags.image, tag=flags.tag)
    answers = Answers()
    with open_channel(flags) as channel, ThreadPoolExecutor(min(flags.c, flags.n)) as workers:
        evaluate = channel.unary_unary(
            METHOD,
            request_serializer=Request.SerializeToString,
            response_deserializer=Response.FromString,
        )
        start = time.monotonic()
        calls = [
            workers.submit(lambda: answers.add(call(evaluate, request, flags.timeout)))
            for _ in range(flags.n)
        ]
        for done in calls:
            done.result()
        elapsed = time.monotonic() - start

    ok = answers.first.get("OK")
    if ok and flags.out:
        try:
            with open(flags.out, "wb") as file:
                file.write(ok.resource_list)
        except OSError as error:
            sys.exit(fail(error))
    report = answers.report(elapsed)
    print(json.dumps(report, ensure_ascii=False, separators=(",", ":")))
    sys.exit(0 if report["code"] == "OK" and report["equal"] else 1)


def fail(error):
    print(f"client.py: {error}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
