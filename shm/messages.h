#pragma once

// Every message between elixird and a trainer. Two channels (shm/README.md):
//
//   attach   AF_UNIX SEQPACKET: descriptors, credentials, liveness (end-of-file is death, and so is
//            the process's end)
//     trainer -> AttachRequest + table fd     AttachReply + control, grads, sums fds    <- elixird
//                                             RanksReady + fds of every rank           <-
//                                             SessionFault (then end-of-file)          <-
//     trainer -> SaveFolder or LoadFolder + fds: no reply but ControlHeader::heard_request
//     trainer -> Detach (then end-of-file)
//   control  ZeroMQ DEALER -> ROUTER: doorbells and requests
//     Hello -> Ack (binds the ZeroMQ peer to the session)
//     AwaitReady -> Ack
//     LoadChunk, GradsPublished, StepPosted, SwingUpdated and StagedChunk: no reply
//
// Raise kLayoutVersion when a struct changes.

#include "shm/message.h"
#include "shm/shape.h"
#include "shm/step_rules.h"

namespace elixir::shm {

enum class MessageType : uint32_t {
  kAttachRequest = 1,
  kAttachReply = 2,
  kRefusal = 3,
  kRanksReady = 4,
  kSessionFault = 5,
  kDetach = 6,
  kSaveFolder = 7,
  kLoadFolder = 8,
  kHello = 16,
  kAck = 17,
  kLoadChunk = 18,
  kAwaitReady = 19,
  kStepPosted = 20,
  kGradsPublished = 22,
  kStagedChunk = 23,
  kSwingUpdated = 24,
};

// The place of a rank among those of its job.
struct RankPosition {
  uint32_t rank = 0;         // among all of the job
  uint32_t local_rank = 0;   // on this node
  uint32_t local_ranks = 1;  // of the job on this node; with the host exchange, all
};

// A rank's wishes. Its job may ignore them.
struct RankWishes {
  uint32_t workers = 0;    // most of elixird's threads to use; 0: elixird's choice
  int32_t numa_node = -1;  // node for the states; -1: elixird's choice
  // 1: the trainer page-locks the params that it reads. CUDA needs memory mapped for writing for
  // this, so RanksReady then brings descriptors that can be mapped for writing.
  uint32_t pins_params = 0;
};

// The digest of an encoded parameter table (shm/parameter_table.h), for comparing the tables of
// ranks.
struct TableDigest {
  uint64_t bytes = 0;
  uint64_t xxh64 = 0;
  bool operator==(const TableDigest&) const = default;
};

// One descriptor travels with it: a memfd that holds the parameter table.
struct AttachRequest {
  static constexpr MessageType kType = MessageType::kAttachRequest;
  MessageHeader header;
  char job[128];  // equal on all ranks of a job, different for other jobs
  Shape shape;
  StepRules rules;
  TableDigest table;  // equal on every rank, because all have one plan
  RankPosition position;
  RankWishes wishes;
};
static_assert(sizeof(AttachRequest) == 272);

// Three descriptors travel with it: control, grads and sums (for reading).
struct AttachReply {
  static constexpr MessageType kType = MessageType::kAttachReply;
  MessageHeader header;
  uint64_t session_id;
  uint64_t token;       // proves on the control channel that the sender attached
  uint64_t page_bytes;  // page size of grads, params and state
};
static_assert(sizeof(AttachReply) == 56);

// A rejection. It ends the conversation, in place of AttachReply (attach) or of the reply
// (control).
struct Refusal {
  static constexpr MessageType kType = MessageType::kRefusal;
  MessageHeader header;
  uint32_t code;  // elixir::Code
  uint32_t reserved;
  char text[1016];
};
static_assert(sizeof(Refusal) == 1056);

// Every rank of the job on this node has attached. It brings descriptors of each rank, in the order
// of local ranks: params and state; with swing chunks the swing memory; and grads, if the exchange
// is the host exchange and there are swing chunks or side memory. They are for reading, except a
// rank's own swing memory and the params that RankWishes::pins_params asks for. A rank maps memory
// for writing before it sends Hello. Once all ranks have sent it, elixird closes the session's
// memory to new writers.
struct RanksReady {
  static constexpr MessageType kType = MessageType::kRanksReady;
  MessageHeader header;
  uint32_t local_ranks;
  uint32_t reserved;
};
static_assert(sizeof(RanksReady) == 40);

// elixird has ended the session, for this reason.
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

// SaveFolder::flags: the descriptors that follow the one of the details, in this order.
inline constexpr uint32_t kHasStaging = 1, kHasLock = 2;

// SaveFolder and LoadFolder are requests for a folder. `number` counts a rank's requests from 1.
// elixird answers in shared memory: heard_request, ended_request, FolderResult. It opens nothing by
// a path. Folders come as descriptors, so elixird reads and writes no more than the trainer could.
//
// SaveFolder asks elixird to write the states after `after_step`, the last step that the rank has
// posted, into a new folder `name`. The first descriptor is that folder's parent. Every rank of the
// node sends it for the same step, before it posts the next one. The second descriptor is a memfd
// with the rank's details (checkpoint/details.h). If chunks are placed on the GPU, a sealed memfd
// of Shape::staging_bytes() follows. For each of these chunks, the rank puts the image of its shard
// there, sends StagedChunk and waits for staged_taken. A last descriptor may hold the folder's lock
// (checkpoint/listing.h), which elixird keeps until the save is over.
struct SaveFolder {
  static constexpr MessageType kType = MessageType::kSaveFolder;
  MessageHeader header;
  uint32_t number;
  uint32_t after_step;
  uint64_t details_bytes;
  uint32_t drop_if_busy;  // 1: rejected while another save runs; 0: it waits, and so do steps
  uint32_t flags;
  char name[256];
};
static_assert(sizeof(SaveFolder) == 312);

// Asks elixird to load the chunks that it keeps on this node from a folder. The folder's descriptor
// comes first, then that of the details. The lowest rank of the node sends it: instead of
// LoadChunk while the job is loading, or later while every posted step is finished. `path` is only
// for error messages.
struct LoadFolder {
  static constexpr MessageType kType = MessageType::kLoadFolder;
  MessageHeader header;
  uint32_t number;
  uint32_t states;  // 1: also optimizer states, if the folder has them; 0: only parameters
  uint64_t details_bytes;
  char path[1024];
};
static_assert(sizeof(LoadFolder) == 1072);

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

// The bits of the FP32 initial weights that the grad slot holds. 16-bit slots take two passes.
enum class LoadPart : uint32_t { kWhole = 0, kHighHalf = 1, kLowHalf = 2 };

// The grad slot of `chunk` (Shape::load_slot) holds `part` of FP32 initial values. Host exchange:
// only rank 0 sends it, with the values of the whole chunk, and elixird puts them into the states
// of every rank. Collective exchange: every rank sends it, with the values of its shard.
//
// The parts depend on the chunk. 16-bit types: kHighHalf, then kLowHalf, each with 16 bits per
// element of the FP32 value. FP32: kWhole. A frozen chunk: kWhole, values of the compute type.
//
// Once elixird has taken a slot's content, it raises the slot's ChunkRecord::loads_taken, and the
// slot may be written again. Several slots may be in use. elixird alone decides when loading ends:
// when it has taken every chunk of every rank that loads, or LoadFolder has filled them. Then the
// job trains, and elixird answers AwaitReady. Without chunks placed on the CPU and frozen chunks
// there is nothing to load.
//
// A chunk may be loaded again before that. It may also be loaded later, while every posted step is
// committed. elixird then loads it behind that step and keeps the moments. elixird does not check
// whether ranks read the slots at that time, so ranks wait for each other with AwaitReady before
// and after.
struct LoadChunk {
  static constexpr MessageType kType = MessageType::kLoadChunk;
  MessageHeader header;
  uint32_t chunk;
  uint32_t part;  // LoadPart
};
static_assert(sizeof(LoadChunk) == 40);

// elixird answers it when the job's initial weights are in the param slots of all ranks. With
// `all_ranks`, it first waits until every rank of the node has sent AwaitReady with all_ranks.
struct AwaitReady {
  static constexpr MessageType kType = MessageType::kAwaitReady;
  MessageHeader header;
  uint32_t all_ranks;
  uint32_t reserved;
};
static_assert(sizeof(AwaitReady) == 40);

// Doorbell: the chunk's gradients have been published (GradRecord). Sent if elixird uses them
// before the step is posted: for immediate or early updates, norms or sums (to_sum).
struct GradsPublished {
  static constexpr MessageType kType = MessageType::kGradsPublished;
  MessageHeader header;
  uint32_t chunk;
  uint32_t reserved;
};
static_assert(sizeof(GradsPublished) == 40);

// The rank's staging memory holds the image of its shard of a chunk placed on the GPU. Chunks are
// staged in ascending order.
struct StagedChunk {
  static constexpr MessageType kType = MessageType::kStagedChunk;
  MessageHeader header;
  uint32_t number;  // of the SaveFolder request
  uint32_t chunk;
};
static_assert(sizeof(StagedChunk) == 40);

// Doorbell: this rank has updated its shard of a swing chunk (SwingRecord).
struct SwingUpdated {
  static constexpr MessageType kType = MessageType::kSwingUpdated;
  MessageHeader header;
  uint32_t chunk;
  uint32_t reserved;
};
static_assert(sizeof(SwingUpdated) == 40);

// Doorbell: ControlHeader.posted_step has reached `step`. It may be sent twice or lost; shared
// memory has the truth.
struct StepPosted {
  static constexpr MessageType kType = MessageType::kStepPosted;
  MessageHeader header;
  uint32_t step;
  uint32_t reserved;
};
static_assert(sizeof(StepPosted) == 40);

}  // namespace elixir::shm
