"""The attach channel of shm/messages.h, written a second time from its description: for peers that
are not Elixir's own, or of another version of it."""

import array
import os
import re
import socket
import struct

MAGIC = 0x524d4c45
with open(os.path.join(os.path.dirname(__file__), '..', '..', 'shm', 'layout.h'), encoding='utf-8') as layout:
    VERSION = int(re.search(r'kLayoutVersion = (\d+);', layout.read())[1])
ATTACH_REQUEST, ATTACH_REPLY, REFUSAL, RANKS_READY, SESSION_FAULT, DETACH = range(1, 7)
FP32 = 2  # elixir::ComputeType
HOST_EXCHANGE = 0

HEADER = struct.Struct('<IIIIQQ')
ATTACH_BODY = struct.Struct('<128s12IQ4IQQ3IIiI')
TEXT_BODY = struct.Struct('<II1016s')

MASK = (1 << 64) - 1
P1, P2, P3, P4, P5 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9,
                      0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)


def xxh64(data, seed=0):
    def rotate(x, bits):
        return ((x << bits) | (x >> (64 - bits))) & MASK

    def mix(accumulator, lane):
        return rotate((accumulator + lane * P2) & MASK, 31) * P1 & MASK

    at, size = 0, len(data)
    if size >= 32:
        lanes = [(seed + P1 + P2) & MASK, (seed + P2) & MASK, seed, (seed - P1) & MASK]
        while at + 32 <= size:
            lanes = [mix(lane, word) for lane, word in
                     zip(lanes, struct.unpack_from('<4Q', data, at))]
            at += 32
        result = sum(rotate(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18))) & MASK
        for lane in lanes:
            result = ((result ^ mix(0, lane)) * P1 + P4) & MASK
    else:
        result = (seed + P5) & MASK
    result = (result + size) & MASK
    while at + 8 <= size:
        result ^= mix(0, struct.unpack_from('<Q', data, at)[0])
        result = (rotate(result, 27) * P1 + P4) & MASK
        at += 8
    if at + 4 <= size:
        result ^= struct.unpack_from('<I', data, at)[0] * P1 & MASK
        result = (rotate(result, 23) * P2 + P3) & MASK
        at += 4
    for byte in data[at:]:
        result = rotate(result ^ (byte * P5 & MASK), 11) * P1 & MASK
    result = (result ^ (result >> 33)) * P2 & MASK
    result = (result ^ (result >> 29)) * P3 & MASK
    return result ^ (result >> 32)


def message(kind, body=b'', version=VERSION, magic=MAGIC):
    """The bytes of a message with a right length and checksum."""
    header = HEADER.pack(magic, version, kind, HEADER.size + len(body), 0, 0)
    checksum = xxh64(body, xxh64(header))
    return HEADER.pack(magic, version, kind, HEADER.size + len(body), 0, checksum) + body


def table(parameters):
    """A parameter table: (name, chunk, offset, numel) each."""
    out = struct.pack('<I', len(parameters))
    for name, chunk, offset, numel in parameters:
        out += struct.pack('<IQQI', chunk, offset, numel, len(name)) + name.encode()
    return out


def attach_request(table_bytes, job='raw', rank=0, ranks=1, chunks=1, chunk_numel=1 << 20,
                   version=VERSION, compute_type=FP32):
    moments, gpu_chunks, frozen_chunks = 2, 0, 0
    parameters = struct.unpack_from('<I', table_bytes)[0] if len(table_bytes) >= 4 else 0
    spare_slots, swing_chunks, swing_lanes, reserved = 0, 0, 0, 0
    shape = (compute_type, HOST_EXCHANGE, ranks, moments, chunks, gpu_chunks, frozen_chunks,
             parameters, spare_slots, swing_chunks, swing_lanes, reserved, chunk_numel)
    rules = (1, 0, 0, 0)  # accumulate, immediate, norms, early
    table = (len(table_bytes), xxh64(table_bytes))
    wishes = (0, -1, 0)  # workers, NUMA node, page-locked
    body = ATTACH_BODY.pack(job.encode(), *shape, *rules, *table, rank, rank, ranks, *wishes)
    return message(ATTACH_REQUEST, body, version)


def table_fd(table_bytes):
    fd = os.memfd_create('table', os.MFD_CLOEXEC)
    os.write(fd, table_bytes)
    return fd


def connect(folder):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(30)
    connection.connect(os.path.join(folder, 'attach.sock'))
    return connection


def send(connection, data, fds=()):
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', fds))] if fds else []
    connection.sendmsg([data], rights)


def receive(connection):
    """(type, body, descriptors) of the next message; (None, b'', []) at the end of file."""
    data, fds, _, _ = socket.recv_fds(connection, 65536, 64)
    if not data:
        return None, b'', []
    return HEADER.unpack_from(data)[2], data[HEADER.size:], fds


def code_and_text(body):
    """Of a Refusal or a SessionFault."""
    code, _, text = TEXT_BODY.unpack(body)
    return code, text.rstrip(b'\0').decode()
