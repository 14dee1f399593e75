#pragma once

// Collectives among all ranks of a job. Blocks of parameters and gradients go through NCCL's
// communicator, where one is given, else through Gloo's connections; small values of the host
// always through Gloo's.
//
// Over Gloo's connections the collectives are written here, on its sends and receives: c10d's own
// reduce-scatter for Gloo is an all-reduce of a copy, its all-gather gathers into a copy, and none
// of its collectives can be broken off. These send each shard once, straight from and into the
// block; they sum in FP32 in the order of ranks, so that every rank computes what the host exchange
// would; and when a rank has died they end, with its name, on all others.
//
// Used by one thread at a time, and every rank must make the same calls in the same order. All
// throw elixir::Error: kPeerLost names a rank that died, kTimedOut one that did not join in time.

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "base/compute_type.h"
#include "base/status.h"
#include "client/collectives/rendezvous.h"
#include "client/ranks/collective_kind.h"

namespace c10d {
class Backend;
}

namespace elixir {

struct CollectiveOptions {
  CollectiveOptions();
  CollectiveOptions(const CollectiveOptions&);
  CollectiveOptions& operator=(const CollectiveOptions&);
  ~CollectiveOptions();  // c10d::Backend is only declared here

  // NCCL's communicator of the same ranks, for blocks on `device`. None: blocks lie on the host.
  c10::intrusive_ptr<c10d::Backend> data;
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  // How long a rank may wait for another that is alive: it may evaluate or save meanwhile. 0: the
  // environment variable ELIXIR_COLLECTIVE_TIMEOUT_S, else kDefaultTimeoutSeconds.
  double timeout_s = 0;
  static constexpr double kDefaultTimeoutSeconds = 1800;
};

// A collective under way. Its block must stay, untouched, until wait() has returned.
class CollectiveWork {
 public:
  virtual ~CollectiveWork() = default;
  // Blocks on the host: returns when the result is there. Blocks on a GPU: torch's current stream
  // waits, the caller does not; a failure then ends what waits for the stream, and check() tells
  // it.
  virtual void wait() = 0;
};

class CollectiveGroup {
 public:
  // Connects every rank with every other. All ranks; the rendezvous outlives the group.
  static Result<std::unique_ptr<CollectiveGroup>> create(const Rendezvous& rendezvous,
                                                         const CollectiveOptions& options = {});
  ~CollectiveGroup();

  uint32_t rank() const;
  uint32_t size() const;
  bool on_host() const;  // where blocks lie

  // ---- blocks: size() shards of shard_numel elements, one after the other ----

  // This rank's shard is in its place; afterwards all are. shard_numel may differ from call to
  // call, not from rank to rank. `chunk`, here and below: whose values they are; Gloo matches it,
  // so that ranks that differ in it fail, NCCL does not.
  std::unique_ptr<CollectiveWork> all_gather(std::byte* block, uint64_t shard_numel,
                                             ComputeType type, uint32_t chunk = kNoChunk);
  // Every rank's block is full; afterwards this rank's shard is the sum of everybody's, and the
  // other shards are undefined. Over Gloo: summed in FP32 in the order of ranks, rounded once; each
  // one under way takes size() - 1 shards of memory. NCCL: in its own order and precision.
  std::unique_ptr<CollectiveWork> reduce_scatter(std::byte* block, uint64_t shard_numel,
                                                 ComputeType type, uint32_t chunk = kNoChunk);

  // ---- values of the host; return when they are there ----

  // No rank returns before every rank has called.
  void barrier();
  // One small struct from every rank, by rank. REQUIRES: padding, if any, set, which nothing can
  // check.
  template <typename T>
  std::vector<T> all_gather_values(const T& mine) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= kMaxValueBytes);
    std::vector<T> all(size());
    all_gather_bytes(reinterpret_cast<const std::byte*>(&mine), sizeof(T),
                     reinterpret_cast<std::byte*>(all.data()));
    return all;
  }
  static constexpr size_t kMaxValueBytes = 4096;

  // Rank 0's values to everybody.
  void broadcast(std::span<float> values);
  // Shard r of rank 0's `all` to rank r's `mine`; `all` is read on rank 0 alone.
  void scatter(std::span<const float> all, std::span<float> mine, uint32_t chunk = kNoChunk);
  // The way back: `all`, size() times as long as `mine`, is written on rank 0 alone.
  void gather(std::span<const float> mine, std::span<float> all);
  // `all` is written on every rank.
  void all_gather(std::span<const float> mine, std::span<float> all, uint32_t chunk = kNoChunk);
  // Added in the order of ranks: equal bits on all.
  double mean(double mine);

  // Once a step: that all ranks have made the same collectives, in the same order, and post the
  // same hyperparameters. `hash` is a running hash over what this rank asked for (kind, chunk),
  // `terms` one of the hyperparameters. Throws kProtocol, on every rank, with the ranks that differ
  // from the others. Returns the bitwise or of all ranks' flags.
  uint32_t agree(uint32_t step, uint64_t hash, uint32_t flags, uint64_t terms = 0);

  // No rank returns before every rank has made this call of the program (is_call), and compares
  // what agree() does. A rank that does not come is named with the call.
  void meet(CollectiveKind call, uint32_t step, uint64_t hash);

  // Throws once a rank is known to be lost or a collective has failed, NCCL's within some seconds.
  // To be called after a wait for a GPU's stream, before its results are used: a broken-off
  // collective leaves anything there.
  void check() const;

 private:
  struct State;
  explicit CollectiveGroup(std::unique_ptr<State> state);
  void all_gather_bytes(const std::byte* mine, size_t bytes, std::byte* all);
  std::unique_ptr<State> state_;
};

}  // namespace elixir
