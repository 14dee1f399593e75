#pragma once

// Collectives among all ranks of a job, whatever carries them (client/collectives/connect_group.h:
// NCCL and Gloo).
//
// Used by one thread at a time, and every rank must make the same calls in the same order. All
// throw elixir::Error: kPeerLost names a rank that died, kTimedOut one that did not join in time.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "base/compute_type.h"
#include "base/status.h"
#include "client/device/device.h"
#include "client/ranks/collective_kind.h"
#include "client/ranks/member.h"

namespace elixir {

// A collective under way. Its block must stay, untouched, until wait() has returned.
class CollectiveWork {
 public:
  virtual ~CollectiveWork() = default;
  // Blocks on the host: returns when the result is there. Blocks on a GPU: the stream entered
  // (CollectiveGroup::enter) waits, the caller does not; a failure then ends what waits for the
  // stream, and check() tells it.
  virtual void wait() = 0;
};

// What needed no waiting for.
class FinishedWork final : public CollectiveWork {
 public:
  void wait() override {}
};

// While it lives, a stream is entered.
class EnteredStream {
 public:
  virtual ~EnteredStream() = default;
};

class CollectiveGroup {
 public:
  virtual ~CollectiveGroup() = default;

  virtual uint32_t rank() const = 0;
  virtual const std::vector<Member>& members() const = 0;  // by rank
  virtual bool on_host() const = 0;                        // where blocks lie
  uint32_t size() const { return static_cast<uint32_t>(members().size()); }

  // How long a rank may wait for another, where ELIXIR_COLLECTIVE_TIMEOUT_S does not say it.
  static constexpr double kDefaultTimeoutSeconds = 1800;

  // ---- blocks: size() shards of shard_numel elements, one after the other ----

  // Collectives of blocks on a GPU begin behind the stream, as Device::begin_collective says it,
  // and it waits for them, while what is returned lives. Null for blocks on the host.
  virtual std::unique_ptr<EnteredStream> enter(const std::optional<TorchStream>& stream) = 0;

  // This rank's shard is in its place; afterwards all are. shard_numel may differ from call to
  // call, not from rank to rank. `chunk`, here and below: whose values they are; Gloo matches it,
  // so that ranks that differ in it fail, NCCL does not.
  virtual std::unique_ptr<CollectiveWork> all_gather(std::byte* block, uint64_t shard_numel,
                                                     ComputeType type,
                                                     uint32_t chunk = kNoChunk) = 0;
  // Every rank's block is full; afterwards this rank's shard is the sum of everybody's, and the
  // other shards are undefined. On the host: summed in FP32 in the order of ranks, rounded once;
  // each one under way takes size() - 1 shards of memory. NCCL: in its own order and precision.
  virtual std::unique_ptr<CollectiveWork> reduce_scatter(std::byte* block, uint64_t shard_numel,
                                                         ComputeType type,
                                                         uint32_t chunk = kNoChunk) = 0;

  // ---- values of the host; return when they are there ----

  // No rank returns before every rank has called.
  void barrier() { all_gather_values<uint8_t>(1); }
  // One small struct from every rank, by rank. REQUIRES: padding, if any, set, which nothing can
  // check.
  template <typename T>
  std::vector<T> all_gather_values(const T& mine, CollectiveKind kind = CollectiveKind::kValues) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= kMaxValueBytes);
    std::vector<T> all(size());
    all[rank()] = mine;
    gather_in_place({kind, sizeof(T)}, reinterpret_cast<std::byte*>(all.data()));
    return all;
  }
  static constexpr size_t kMaxValueBytes = 4096;

  // Rank 0's values to everybody.
  virtual void broadcast(std::span<std::byte> bytes) = 0;
  // Shard r of rank 0's `all` to rank r's `mine`; `all` is read on rank 0 alone.
  virtual void scatter(std::span<const float> all, std::span<float> mine,
                       uint32_t chunk = kNoChunk) = 0;
  // The way back: `all`, size() times as long as `mine`, is written on rank 0 alone.
  virtual void gather(std::span<const float> mine, std::span<float> all) = 0;
  // `all`, as long, is written on every rank.
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

  // ---- failures ----

  // Throws once a rank is known to be lost or a collective has failed, NCCL's within some seconds.
  // To be called after a wait for a GPU's stream, before its results are used: a broken-off
  // collective leaves anything there.
  virtual void check() const = 0;
  // Waits for an event of the device, behind collectives; kTimedOut after so many seconds. Not
  // Device::synchronize: a stream may hold a collective that another rank never joins. Throws as
  // check() does.
  Status await(Device& device, DeviceEvent done, double timeout_s) const;
  // Tells the other ranks why this one ends.
  virtual void report(const Status& failure) = 0;

 protected:
  // size() pieces of collective.bytes, of which this rank's is in its place; afterwards all are.
  virtual void gather_in_place(CollectiveSignature collective, std::byte* all) = 0;
};

}  // namespace elixir
