#pragma once

// Every message between elixird and a trainer. Two channels (shm/README.md):
//
//   attach   AF_UNIX SEQPACKET: descriptors, credentials, liveness (end-of-file is death)
//     trainer -> AttachRequest + table fd     AttachReply + control, grads, params fds <- elixird
//                                             PeersReady + params fd of every rank     <-
//                                             SessionFault (then end-of-file)          <-
//     trainer -> Detach (then end-of-file)
//   control  ZeroMQ DEALER -> ROUTER: doorbells and requests
//     Hello -> Ack (binds the ZeroMQ peer to the session)
//     LoadChunk -> Ack (rank 0), AwaitReady -> Ack, StepPosted (no reply), Checksum ->
//     ChecksumReply
//
// Raise kLayoutVersion when a struct changes.

#include "shm/message.h"

namespace elixir::shm {

enum class MessageType : uint32_t {
  kAttachRequest = 1,
  kAttachReply = 2,
  kRefusal = 3,
  kPeersReady = 4,
  kSessionFault = 5,
  kDetach = 6,
  kHello = 16,
  kAck = 17,
  kLoadChunk = 18,
  kAwaitReady = 19,
  kStepPosted = 20,
  kChecksum = 21,
  kChecksumReply = 22,
};

// One descriptor travels with it: a memfd that holds the parameter table
// (shm/parameter_table.h), `table_bytes` long.
struct AttachRequest {
  static constexpr MessageType kType = MessageType::kAttachRequest;
  MessageHeader header;
  char job[128];   // the same for every rank of a job, different for others
  uint32_t rank;   // on this node
  uint32_t ranks;  // of the job on this node
  uint32_t compute_type;
  uint32_t n_chunks;
  uint64_t chunk_numel;
  uint64_t table_bytes;
  uint64_t table_xxh64;  // equal on every rank: the plan is one
  uint32_t workers;      // at most so many of elixird's threads; 0: elixird's choice
  int32_t numa_node;     // where the states should lie; -1: elixird's choice
};
static_assert(sizeof(AttachRequest) == 208);

// Three descriptors travel with it: control, grads, params.
struct AttachReply {
  static constexpr MessageType kType = MessageType::kAttachReply;
  MessageHeader header;
  uint64_t session_id;
  uint64_t token;       // proves on the control channel that the sender attached
  uint64_t page_bytes;  // obtained for grads, params and state
  char control_endpoint[256];
};
static_assert(sizeof(AttachReply) == 312);

// Ends the conversation: on attach instead of AttachReply, on control instead of the reply.
struct Refusal {
  static constexpr MessageType kType = MessageType::kRefusal;
  MessageHeader header;
  uint32_t code;  // elixir::Code
  uint32_t reserved;
  char text[1016];
};
static_assert(sizeof(Refusal) == 1056);

// Every rank of the job has attached. `ranks` descriptors travel with it: each rank's params, in
// rank order, for reading.
struct PeersReady {
  static constexpr MessageType kType = MessageType::kPeersReady;
  MessageHeader header;
  uint32_t ranks;
  uint32_t reserved;
};
static_assert(sizeof(PeersReady) == 40);

// elixird ended the session, and why.
struct SessionFault {
  static constexpr MessageType kType = MessageType::kSessionFault;
  MessageHeader header;
  uint32_t code;  // elixir::Code
  uint32_t rank;  // the rank that caused it, or UINT32_MAX
  char text[1016];
};
static_assert(sizeof(SessionFault) == 1056);

// A clean goodbye. An end-of-file without it is a death.
struct Detach {
  static constexpr MessageType kType = MessageType::kDetach;
  MessageHeader header;
};
static_assert(sizeof(Detach) == 32);

struct Hello {
  static constexpr MessageType kType = MessageType::kHello;
  MessageHeader header;
  uint64_t session_id;
  uint64_t token;
};
static_assert(sizeof(Hello) == 48);

struct Ack {
  static constexpr MessageType kType = MessageType::kAck;
  MessageHeader header;
};
static_assert(sizeof(Ack) == 32);

// Which bits of the FP32 initial weights the grad slot holds. 16-bit slots take two passes.
enum class LoadPart : uint32_t { kWhole = 0, kHighHalf = 1, kLowHalf = 2 };

// Rank 0: the grad slot of `chunk` holds `part` of the whole chunk's FP32 values; elixird takes
// them into the states of every rank of the job. 16-bit types: kHighHalf, then kLowHalf, each
// 16 bits of the FP32 value an element; FP32: kWhole. The Ack frees the slot. `last`: the job is
// loaded and every rank's AwaitReady is answered.
struct LoadChunk {
  static constexpr MessageType kType = MessageType::kLoadChunk;
  MessageHeader header;
  uint32_t chunk;
  uint32_t part;  // LoadPart
  uint32_t last;
  uint32_t reserved;
};
static_assert(sizeof(LoadChunk) == 48);

// Answered when the job's initial weights are in the param slots of all ranks.
struct AwaitReady {
  static constexpr MessageType kType = MessageType::kAwaitReady;
  MessageHeader header;
};
static_assert(sizeof(AwaitReady) == 32);

// Doorbell: ControlHeader.posted_step has reached `step`. Idempotent; shared memory is the truth.
struct StepPosted {
  static constexpr MessageType kType = MessageType::kStepPosted;
  MessageHeader header;
  uint32_t step;
  uint32_t reserved;
};
static_assert(sizeof(StepPosted) == 40);

// Asks for the xxh64 (seed 0) over all FP32 masters of the job, parameters in ascending order of
// their names (bytewise), each in the order of its elements, without padding. Answered once every
// posted step has finished.
struct Checksum {
  static constexpr MessageType kType = MessageType::kChecksum;
  MessageHeader header;
};
static_assert(sizeof(Checksum) == 32);

struct ChecksumReply {
  static constexpr MessageType kType = MessageType::kChecksumReply;
  MessageHeader header;
  uint64_t xxh64;
  uint32_t step;  // after which step
  uint32_t reserved;
};
static_assert(sizeof(ChecksumReply) == 48);

}  // namespace elixir::shm
