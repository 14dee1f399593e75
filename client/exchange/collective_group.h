#pragma once

// Collectives among all ranks of a job, over any library (client/collectives/connect_group.h: NCCL
// and Gloo).
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

// A collective in progress. Its block must stay untouched until wait() has returned.
class CollectiveWork {
 public:
  virtual ~CollectiveWork() = default;
  // Blocks on the host: returns when the result is there. Blocks on a GPU: the entered stream
  // (CollectiveGroup::enter) waits, and the caller does not. A failure then ends the work that
  // waits for the stream, and check() reports it.
  virtual void wait() = 0;
};

// A collective that needed no waiting.
class FinishedWork final : public CollectiveWork {
 public:
  void wait() override {}
};

// While it lives, collectives use one stream (CollectiveGroup::enter).
class EnteredStream {
 public:
  virtual ~EnteredStream() = default;
};

class CollectiveGroup {
 public:
  virtual ~CollectiveGroup() = default;

  virtual uint32_t rank() const = 0;
  virtual const std::vector<Member>& members() const = 0;  // by rank
  virtual bool on_host() const = 0;                        // blocks lie in host memory
  uint32_t size() const { return static_cast<uint32_t>(members().size()); }

  // How long a rank may wait for another, unless ELIXIR_COLLECTIVE_TIMEOUT_S is set.
  static constexpr double kDefaultTimeoutSeconds = 1800;

  // ---- blocks: size() shards of shard_numel elements, one after the other ----

  // `stream` is the result of Device::begin_collective. While the result lives, collectives of
  // blocks on a GPU begin behind the stream, and the stream waits for them. Null for blocks on the
  // host.
  virtual std::unique_ptr<EnteredStream> enter(const std::optional<TorchStream>& stream) = 0;

  // Before the call, this rank's shard is in its place; afterwards all shards are. The length may
  // differ from call to call, but not from rank to rank. Here and below, `chunk` is the chunk of
  // the values. Gloo compares it, so ranks that differ in it fail; NCCL does not.
  virtual std::unique_ptr<CollectiveWork> all_gather(std::byte* block, uint64_t shard_numel,
                                                     ComputeType type,
                                                     uint32_t chunk = kNoChunk) = 0;
  // Before the call, every rank's block is full. Afterwards this rank's shard is the sum over all
  // ranks, and the other shards are undefined. On the host it is summed in FP32 in the order of
  // ranks and rounded once; each call in progress takes size() - 1 shards of memory. NCCL uses its
  // own order and precision.
  virtual std::unique_ptr<CollectiveWork> reduce_scatter(std::byte* block, uint64_t shard_numel,
                                                         ComputeType type,
                                                         uint32_t chunk = kNoChunk) = 0;

  // ---- values of the host; return when they are there ----

  // No rank returns before every rank has called.
  void barrier() { all_gather_values<uint8_t>(1); }
  // One small struct from every rank, by rank. REQUIRES: padding, if any, is set; nothing can check
  // that.
  template <typename T>
  std::vector<T> all_gather_values(const T& mine, CollectiveKind kind = CollectiveKind::kValues) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= kMaxValueBytes);
    std::vector<T> all(size());
    all[rank()] = mine;
    gather_in_place({kind, sizeof(T)}, reinterpret_cast<std::byte*>(all.data()));
    return all;
  }
  static constexpr size_t kMaxValueBytes = 4096;

  // Sends rank 0's values to all ranks.
  virtual void broadcast(std::span<std::byte> bytes) = 0;
  // Sends shard r of rank 0's `all` to rank r's `mine`; only rank 0 reads `all`.
  virtual void scatter(std::span<const float> all, std::span<float> mine,
                       uint32_t chunk = kNoChunk) = 0;
  // The reverse: only rank 0 writes `all`, which is size() times as long as `mine`.
  virtual void gather(std::span<const float> mine, std::span<float> all) = 0;
  // Like gather(), but every rank writes `all`.
  void all_gather(std::span<const float> mine, std::span<float> all, uint32_t chunk = kNoChunk);
  // Adds in the order of ranks, so all ranks get equal bits.
  double mean(double mine);

  // Checks that all ranks have made the same collectives in the same order, and post the same
  // hyperparameters. The argument `hash` is a running hash of this rank's collectives (kind,
  // chunk), and `terms` is a hash of the hyperparameters. Throws kProtocol, on every rank, and
  // names the ranks that differ from the others. Returns the bitwise or of all ranks' flags.
  uint32_t agree(uint32_t step, uint64_t hash, uint32_t flags, uint64_t terms = 0);

  // No rank returns before every rank has made this call of the program (is_call). It also compares
  // `step` and `hash`, as agree() does. The error names the call and a rank that does not come.
  void meet(CollectiveKind call, uint32_t step, uint64_t hash);

  // ---- failures ----

  // Throws once a rank is known to be lost or a collective has failed, within some seconds for
  // NCCL. Call it after a wait for a GPU's stream, before you use the results: an aborted
  // collective leaves arbitrary bytes there.
  virtual void check() const = 0;
  // Waits for an event of the device that is behind collectives; kTimedOut after timeout_s. Do not
  // use Device::synchronize for it: a stream may hold a collective that another rank never joins.
  // Throws as check() does.
  Status await(Device& device, DeviceEvent done, double timeout_s) const;
  // Tells the other ranks why this one ends.
  virtual void report(const Status& failure) = 0;

 protected:
  // `all` has size() pieces of collective.bytes. Before the call, this rank's piece is in its
  // place; afterwards all are.
  virtual void gather_in_place(CollectiveSignature collective, std::byte* all) = 0;
};

}  // namespace elixir
