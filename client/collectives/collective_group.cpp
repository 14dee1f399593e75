#include "client/collectives/collective_group.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <chrono>
#include <cstring>
#include <exception>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "base/clock.h"
#include "base/log.h"
#include "base/throw_error.h"
#include "client/collectives/device_works.h"
#include "client/collectives/gloo_transport.h"
#include "client/collectives/sum_shards.h"
#include "client/ranks/agreement.h"
#include "client/ranks/seconds_setting.h"
#include "client/tensors/scalar_type.h"
#include "client/tensors/torch_failure.h"

namespace elixir {

namespace {

// At the end a rank waits so long for collectives that its device still makes.
constexpr double kFinishS = 10;
constexpr std::chrono::milliseconds kFinishPoll{1};

struct Scratch {
  std::unique_ptr<std::byte[]> memory;
  size_t bytes = 0;
};

}  // namespace

CollectiveOptions::CollectiveOptions() = default;
CollectiveOptions::CollectiveOptions(const CollectiveOptions&) = default;
CollectiveOptions& CollectiveOptions::operator=(const CollectiveOptions&) = default;
CollectiveOptions::~CollectiveOptions() = default;

struct CollectiveGroup::State {
  const Rendezvous& rendezvous;
  CollectiveOptions options;
  std::unique_ptr<GlooTransport> transport;
  std::unique_ptr<DeviceWorks> works;  // null: blocks lie on the host
  // Memory for other ranks' gradients, kept from one reduce-scatter to the next.
  std::vector<Scratch> free_scratch;

  bool connected = false;      // the backend
  bool backend_ended = false;  // written by the watch's callback
  const int exceptions_at_start = std::uncaught_exceptions();

  explicit State(const Rendezvous& with) : rendezvous(with) {}
  uint32_t rank() const { return rendezvous.rank(); }
  uint32_t size() const { return rendezvous.size(); }

  Scratch take_scratch(size_t bytes);
  template <typename Call>
  std::unique_ptr<CollectiveWork> call_backend(const char* what, const Call& call);
  void watch_over();
  Status connect_backend();
  bool finish_works();
  void end_backend();
};

namespace {

class HostGather final : public CollectiveWork {
 public:
  HostGather(GlooTransport& transport, CollectiveSignature collective, std::byte* block)
      : transfers_(transport, collective) {
    transfers_.gather(block, collective.bytes);
  }
  void wait() override { transfers_.wait(); }

 private:
  Transfers transfers_;
};

class HostReduce final : public CollectiveWork {
 public:
  // `others`: size - 1 shards for what comes from the other ranks; given back to `pool`.
  HostReduce(GlooTransport& transport, std::byte* block, uint64_t shard_numel, ComputeType type,
             uint32_t chunk, Scratch others, std::vector<Scratch>& pool)
      : own_(block + transport.rank() * shard_numel * element_bytes(type)),
        shard_numel_(shard_numel),
        type_(type),
        others_(std::move(others)),
        pool_(pool),
        transfers_(transport,
                   {CollectiveKind::kReduceScatter, shard_numel * element_bytes(type), chunk}) {
    const size_t bytes = shard_numel * element_bytes(type);
    const uint32_t rank = transport.rank(), size = transport.size();
    for (uint32_t from = 0; from < size; ++from) {
      const size_t place = from < rank ? from : from - 1;
      sources_.push_back(from == rank ? own_ : others_.memory.get() + place * bytes);
    }
    for (uint32_t i = 1; i < size; ++i) {
      const uint32_t from = (rank + size - i) % size;
      transfers_.receive(from, const_cast<std::byte*>(sources_[from]), bytes);
    }
    for (uint32_t i = 1; i < size; ++i) {
      const uint32_t to = (rank + i) % size;
      transfers_.send(to, block + to * bytes, bytes);
    }
  }
  void wait() override {
    transfers_.wait();
    if (others_.memory == nullptr) return;  // waited for before
    sum_in_order(sources_, own_, shard_numel_, type_);
    pool_.push_back(std::move(others_));
  }

 private:
  std::byte* const own_;
  const uint64_t shard_numel_;
  const ComputeType type_;
  std::vector<const std::byte*> sources_;  // by rank
  Scratch others_;
  std::vector<Scratch>& pool_;
  Transfers transfers_;  // ends first: it writes to others_
};

class DeviceWork final : public CollectiveWork {
 public:
  DeviceWork(GlooTransport& transport, const char* what, c10::intrusive_ptr<c10d::Work> work)
      : transport_(transport), what_(what), work_(std::move(work)) {}
  void wait() override {
    throw_if_error(transport_.status());
    try {
      work_->wait();
    } catch (const std::exception& failure) {
      throw Error(transport_.explain(Code::kInternal, what_, failure_text(failure)));
    }
  }

 private:
  GlooTransport& transport_;
  const char* const what_;
  const c10::intrusive_ptr<c10d::Work> work_;
};

struct Nothing final : CollectiveWork {
  void wait() override {}
};

at::Tensor tensor_at(std::byte* memory, uint64_t numel, ComputeType type, c10::Device device) {
  return at::for_blob(memory, {static_cast<int64_t>(numel)})
      .options(at::TensorOptions().dtype(scalar_type(type)).device(device))
      .target_device(device)
      .make_tensor();
}

template <typename T>
const std::byte* bytes_of(std::span<T> values) {
  return reinterpret_cast<const std::byte*>(values.data());
}
std::byte* writable_bytes_of(std::span<float> values) {
  return reinterpret_cast<std::byte*>(values.data());
}

}  // namespace

Scratch CollectiveGroup::State::take_scratch(size_t bytes) {
  while (!free_scratch.empty()) {
    Scratch scratch = std::move(free_scratch.back());
    free_scratch.pop_back();
    if (scratch.bytes >= bytes) return scratch;
  }
  return {std::make_unique_for_overwrite<std::byte[]>(bytes), bytes};
}

template <typename Call>
std::unique_ptr<CollectiveWork> CollectiveGroup::State::call_backend(const char* what,
                                                                     const Call& call) {
  throw_if_error(transport->status());
  try {
    c10::intrusive_ptr<c10d::Work> work = call();
    works->add(what, work);
    return std::make_unique<DeviceWork>(*transport, what, std::move(work));
  } catch (const std::exception& failure) {
    throw Error(transport->explain(Code::kInternal, what, failure_text(failure)));
  }
}

// A fault ends what is under way; NCCL's collectives that fail are a fault.
void CollectiveGroup::State::watch_over() {
  PeerWatch& watch = rendezvous.watch();
  watch.set_callback([this](const Status&) {
    transport->abort();
    try {
      if (options.data) options.data->abort();
    } catch (const std::exception& failure) {  // NCCL's, of a device that is lost: it has ended
      log_warn("collectives_abort", "text=\"{}\"", failure_text(failure));
    }
    backend_ended = true;
  });
  if (works) watch.set_health([this] { return works->ask(); });
}

// NCCL's making of a communicator cannot be broken off, and waits for a rank that never comes: so
// it is made when all have come, and not by the first collective.
Status CollectiveGroup::State::connect_backend() {
  if (!options.data || size() == 1) return Status();  // one rank makes no collectives
  ELIXIR_RETURN_IF_ERROR(rendezvous.meet("nccl"));
  try {
    options.data->eagerConnectSingleDevice(options.device);
  } catch (const std::exception& failure) {
    return transport->explain(Code::kInternal, "the communicator of the devices",
                              failure_text(failure));
  }
  connected = true;
  return Status();
}

// False: something failed, or does not end.
bool CollectiveGroup::State::finish_works() {
  const int64_t start_ns = monotonic_ns();
  for (;;) {
    if (!transport->status().ok() || !works->ask().ok()) return false;
    if (works->all_done()) return true;
    if (seconds_since(start_ns) > kFinishS) return false;
    std::this_thread::sleep_for(kFinishPoll);
  }
}

// torch warns of a backend that was neither shut down nor aborted. To shut it down waits for its
// collectives, so first they must be done.
void CollectiveGroup::State::end_backend() {
  if (!options.data || backend_ended) return;
  try {
    if (std::uncaught_exceptions() == exceptions_at_start && connected && finish_works()) {
      options.data->shutdown();
    } else {
      options.data->abort();
    }
  } catch (const std::exception& failure) {
    log_warn("nccl_end", "text=\"{}\"", failure_text(failure));
  }
}

Result<std::unique_ptr<CollectiveGroup>> CollectiveGroup::create(const Rendezvous& rendezvous,
                                                                 const CollectiveOptions& options) {
  const Result<double> timeout_s = seconds_setting(options.timeout_s, "ELIXIR_COLLECTIVE_TIMEOUT_S",
                                                   CollectiveOptions::kDefaultTimeoutSeconds);
  if (!timeout_s.ok()) return timeout_s.status();
  auto state = std::make_unique<State>(rendezvous);
  state->options = options;
  Result<std::unique_ptr<GlooTransport>> transport = GlooTransport::connect(rendezvous, *timeout_s);
  if (!transport.ok()) return transport.status();
  state->transport = std::move(*transport);
  if (options.data) state->works = std::make_unique<DeviceWorks>(options.device, *timeout_s);
  state->watch_over();
  std::unique_ptr<CollectiveGroup> group(new CollectiveGroup(std::move(state)));
  ELIXIR_RETURN_IF_ERROR(group->state_->connect_backend());
  return group;
}

CollectiveGroup::CollectiveGroup(std::unique_ptr<State> state) : state_(std::move(state)) {}
CollectiveGroup::~CollectiveGroup() {
  PeerWatch& watch = state_->rendezvous.watch();
  watch.set_health({});
  watch.set_callback({});
  state_->end_backend();
}

uint32_t CollectiveGroup::rank() const { return state_->rank(); }
uint32_t CollectiveGroup::size() const { return state_->size(); }
bool CollectiveGroup::on_host() const { return state_->options.data == nullptr; }

std::unique_ptr<CollectiveWork> CollectiveGroup::all_gather(std::byte* block, uint64_t shard_numel,
                                                            ComputeType type, uint32_t chunk) {
  const size_t bytes = shard_numel * element_bytes(type);
  if (size() == 1) return std::make_unique<Nothing>();
  if (on_host()) {
    return std::make_unique<HostGather>(
        *state_->transport, CollectiveSignature{CollectiveKind::kAllGather, bytes, chunk}, block);
  }
  const c10::Device device = state_->options.device;
  return state_->call_backend("an all-gather on the device", [&] {
    at::Tensor all = tensor_at(block, size() * shard_numel, type, device);
    at::Tensor mine = tensor_at(block + rank() * bytes, shard_numel, type, device);
    return state_->options.data->_allgather_base(all, mine);
  });
}

std::unique_ptr<CollectiveWork> CollectiveGroup::reduce_scatter(std::byte* block,
                                                                uint64_t shard_numel,
                                                                ComputeType type, uint32_t chunk) {
  const size_t bytes = shard_numel * element_bytes(type);
  if (size() == 1) return std::make_unique<Nothing>();
  if (on_host()) {
    return std::make_unique<HostReduce>(*state_->transport, block, shard_numel, type, chunk,
                                        state_->take_scratch((size() - 1) * bytes),
                                        state_->free_scratch);
  }
  const c10::Device device = state_->options.device;
  return state_->call_backend("a reduce-scatter on the device", [&] {
    at::Tensor all = tensor_at(block, size() * shard_numel, type, device);
    at::Tensor mine = tensor_at(block + rank() * bytes, shard_numel, type, device);
    return state_->options.data->_reduce_scatter_base(mine, all);
  });
}

void CollectiveGroup::barrier() { all_gather_values<uint8_t>(1); }

void CollectiveGroup::all_gather_bytes(const std::byte* mine, size_t bytes, std::byte* all) {
  std::memcpy(all + rank() * bytes, mine, bytes);
  HostGather(*state_->transport, {CollectiveKind::kValues, bytes}, all).wait();
}

void CollectiveGroup::broadcast(std::span<float> values) {
  Transfers transfers(*state_->transport, {CollectiveKind::kBroadcast, values.size_bytes()});
  if (rank() != 0) transfers.receive(0, writable_bytes_of(values), values.size_bytes());
  for (uint32_t to = 1; rank() == 0 && to < size(); ++to) {
    transfers.send(to, bytes_of(values), values.size_bytes());
  }
  transfers.wait();
}

void CollectiveGroup::scatter(std::span<const float> all, std::span<float> mine, uint32_t chunk) {
  const size_t bytes = mine.size_bytes();
  Transfers transfers(*state_->transport, {CollectiveKind::kScatter, bytes, chunk});
  if (rank() != 0) transfers.receive(0, writable_bytes_of(mine), bytes);
  for (uint32_t to = 1; rank() == 0 && to < size(); ++to) {
    transfers.send(to, bytes_of(all) + to * bytes, bytes);
  }
  if (rank() == 0) std::memmove(mine.data(), all.data(), bytes);
  transfers.wait();
}

void CollectiveGroup::gather(std::span<const float> mine, std::span<float> all) {
  const size_t bytes = mine.size_bytes();
  Transfers transfers(*state_->transport, {CollectiveKind::kGather, bytes});
  if (rank() != 0) transfers.send(0, bytes_of(mine), bytes);
  for (uint32_t from = 1; rank() == 0 && from < size(); ++from) {
    transfers.receive(from, writable_bytes_of(all) + from * bytes, bytes);
  }
  if (rank() == 0) std::memmove(all.data(), mine.data(), bytes);
  transfers.wait();
}

void CollectiveGroup::all_gather(std::span<const float> mine, std::span<float> all,
                                 uint32_t chunk) {
  std::memmove(all.data() + rank() * mine.size(), mine.data(), mine.size_bytes());
  HostGather(*state_->transport, {CollectiveKind::kValues, mine.size_bytes(), chunk},
             writable_bytes_of(all))
      .wait();
}

double CollectiveGroup::mean(double mine) {
  double sum = 0;
  for (const double value : all_gather_values(mine)) sum += value;
  return sum / size();
}

uint32_t CollectiveGroup::agree(uint32_t step, uint64_t hash, uint32_t flags, uint64_t terms) {
  const std::vector<Vote> votes = all_gather_values(Vote{hash, step, flags, terms});
  throw_if_error(compare_votes(votes, state_->rendezvous.members()));
  uint32_t all_flags = 0;
  for (const Vote& vote : votes) all_flags |= vote.flags;
  return all_flags;
}

void CollectiveGroup::meet(CollectiveKind call, uint32_t step, uint64_t hash) {
  std::vector<Vote> votes(size());
  votes[rank()] = {hash, step, 0, 0};
  HostGather(*state_->transport, {call, sizeof(Vote)}, reinterpret_cast<std::byte*>(votes.data()))
      .wait();
  throw_if_error(compare_votes(votes, state_->rendezvous.members()));
}

void CollectiveGroup::check() const { throw_if_error(state_->transport->status()); }

}  // namespace elixir
