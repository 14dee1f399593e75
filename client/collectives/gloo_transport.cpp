#include "client/collectives/gloo_transport.h"

#include <ATen/ops/from_blob.h>

#include <cstdlib>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
// Debian's headers of Gloo, for the declarations: the code is in libtorch_cpu, and newer.
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "base/clock.h"
#include "base/throw_error.h"
#include "client/ranks/without_sigpipe.h"
#include "client/tensors/torch_failure.h"

namespace elixir {
namespace {

// All ranks are there when they begin to connect (Rendezvous::meet), so this is for the network.
constexpr int kConnectMs = 25000;
constexpr double kNameS = 5;  // how long a failure waits for the name of the rank that caused it

// A positive int. Where ranks make different collectives under one number, the signatures tell them
// apart, but for one in 16384. (CollectiveGroup::agree finds those of chunks.)
int tag_of(uint64_t number, CollectiveSignature collective) {
  uint64_t mixed = collective.pack();
  for (int round = 0; round < 2; ++round) mixed = (mixed ^ mixed >> 32) * 0x9e3779b97f4a7c15u;
  return static_cast<int>((mixed >> 50) << 16 | number % (1u << 16));
}

std::vector<std::shared_ptr<gloo::transport::Device>> devices_for(const std::string& address) {
  std::vector<std::shared_ptr<gloo::transport::Device>> devices;
  const char* interfaces = std::getenv("GLOO_SOCKET_IFNAME");
  if (interfaces == nullptr || *interfaces == '\0') {
    return {c10d::ProcessGroupGloo::createDeviceForHostname(address)};
  }
  const std::string list = interfaces;  // "eth0,eth1"
  for (size_t begin = 0; begin < list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    devices.push_back(
        c10d::ProcessGroupGloo::createDeviceForInterface(list.substr(begin, end - begin)));
    begin = end + 1;
  }
  return devices;
}

at::Tensor bytes_at(const std::byte* memory, size_t bytes) {
  return at::from_blob(const_cast<std::byte*>(memory), {static_cast<int64_t>(bytes)}, at::kByte);
}

}  // namespace

Result<std::unique_ptr<GlooTransport>> GlooTransport::connect(const Rendezvous& rendezvous,
                                                              double timeout_s) {
  std::unique_ptr<GlooTransport> transport(new GlooTransport(rendezvous, timeout_s));
  if (rendezvous.size() == 1) return transport;
  ELIXIR_RETURN_IF_ERROR(rendezvous.meet("gloo"));
  const WithoutSigpipe guard;  // for the thread that Gloo begins, too
  try {
    const auto options =
        c10d::ProcessGroupGloo::Options::create(std::chrono::milliseconds(kConnectMs));
    options->threads = 1;  // for its own collectives, of which there are none
    options->devices = devices_for(rendezvous.address());
    transport->gloo_ = c10::make_intrusive<c10d::ProcessGroupGloo>(
        c10::make_intrusive<c10d::PrefixStore>("gloo", rendezvous.store()),
        static_cast<int>(rendezvous.rank()), static_cast<int>(rendezvous.size()), options);
  } catch (const std::exception& failure) {
    return transport->explain(
        Code::kUnavailable,
        fmt::format("Gloo could not connect the {} ranks over {} within {} s (another interface: "
                    "GLOO_SOCKET_IFNAME)",
                    rendezvous.size(), rendezvous.address(), kConnectMs / 1000),
        failure_text(failure));
  }
  // Gloo knows of this rank's connections alone: had it gone now, others might still be making
  // theirs.
  std::vector<std::byte> greetings(rendezvous.size());
  try {
    Transfers transfers(*transport, {CollectiveKind::kValues, 1});
    transfers.gather(greetings.data(), 1);
    transfers.wait();
  } catch (const Error& failure) {
    return Status(failure.code(), failure.what());
  }
  return transport;
}

GlooTransport::~GlooTransport() = default;

void GlooTransport::abort() {
  const MutexLock lock(mutex_);
  aborted_.store(true, std::memory_order_relaxed);
  // An abort before the wait is kept for it; so none can be missed.
  for (c10d::Work* work : under_way_) work->abort();
}

Status GlooTransport::status() const {
  if (!aborted_.load(std::memory_order_relaxed)) return rendezvous_.watch().status();
  const MutexLock lock(mutex_);
  if (!failure_.ok()) return failure_;
  const Status known = rendezvous_.watch().status();
  return !known.ok() ? known : error(Code::kPeerLost, "the collectives of this rank were ended");
}

void GlooTransport::set_failure(const Status& failure) {
  {
    const MutexLock lock(mutex_);
    if (failure_.ok()) failure_ = failure;
  }
  abort();
}

Status GlooTransport::explain(Code code, const std::string& what, const std::string& cause) {
  PeerWatch& watch = rendezvous_.watch();
  Status status = code == Code::kTimedOut ? watch.status() : watch.await_status(kNameS);
  if (status.ok()) {
    status = Status(code, what + ": " + cause);
    watch.report(status);
  }
  set_failure(status);
  return status;
}

void GlooTransport::begin(c10d::Work* work) {
  const MutexLock lock(mutex_);
  under_way_.insert(work);
  if (aborted_.load(std::memory_order_relaxed)) work->abort();
}

void GlooTransport::end(c10d::Work* work) {
  const MutexLock lock(mutex_);
  under_way_.erase(work);
}

void GlooTransport::await(c10d::Work& work, uint32_t peer, CollectiveSignature collective) {
  const Member& member = rendezvous_.members()[peer];
  const int64_t start_ns = monotonic_ns();
  try {
    const auto limit = std::chrono::milliseconds(static_cast<int64_t>(timeout_s_ * 1000));
    if (work.wait(limit)) return;
  } catch (const std::exception& failure) {
    if (seconds_since(start_ns) < timeout_s_ * 0.99) {
      throw Error(
          explain(Code::kPeerLost,
                  fmt::format("the connection to {} broke in {}", member.name(), collective.name()),
                  failure_text(failure)));
    }
    if (is_call(collective.kind)) {
      throw Error(explain(
          Code::kTimedOut,
          fmt::format("{} of {} has waited {:.0f} s for {} to call it, too", collective.name(),
                      rendezvous_.members()[rank()].name(), timeout_s_, member.name()),
          "every rank must make the same calls; ELIXIR_COLLECTIVE_TIMEOUT_S allows more"));
    }
    throw Error(explain(Code::kTimedOut,
                        fmt::format("{} has not joined {} within {:.0f} s", member.name(),
                                    collective.name(), timeout_s_),
                        "it is alive, but busy or stuck; ELIXIR_COLLECTIVE_TIMEOUT_S allows more"));
  }
  throw Error(status());  // aborted
}

Transfers::Transfers(GlooTransport& transport, CollectiveSignature collective)
    : transport_(transport),
      collective_(collective),
      number_(++transport.transfers_),
      tag_(tag_of(number_, collective)) {}

Transfers::~Transfers() {
  if (done_ < transfers_.size()) transport_.abort();
  for (const Transfer& transfer : transfers_) transport_.end(transfer.work.get());
}

template <typename Begin>
void Transfers::add(uint32_t peer, const std::byte* memory, size_t bytes, const Begin& begin) {
  if (bytes == 0) return;
  throw_if_error(transport_.status());
  std::vector<at::Tensor> tensors = {bytes_at(memory, bytes)};
  const WithoutSigpipe guard;
  try {
    c10::intrusive_ptr<c10d::Work> work = begin(tensors, static_cast<int>(peer));
    transport_.begin(work.get());
    transfers_.push_back({std::move(work), peer});
  } catch (const std::exception& failure) {
    throw Error(transport_.explain(Code::kPeerLost, collective_.name() + " could not begin",
                                   failure_text(failure)));
  }
}

void Transfers::receive(uint32_t from, std::byte* memory, size_t bytes) {
  add(from, memory, bytes,
      [this](auto& tensors, int rank) { return transport_.gloo_->recv(tensors, rank, tag_); });
}

void Transfers::send(uint32_t to, const std::byte* memory, size_t bytes) {
  add(to, memory, bytes,
      [this](auto& tensors, int rank) { return transport_.gloo_->send(tensors, rank, tag_); });
}

// Everybody begins with its neighbour, so that not all send to one at a time.
void Transfers::gather(std::byte* block, size_t shard_bytes) {
  const uint32_t rank = transport_.rank(), size = transport_.size();
  const auto shard = [=](uint32_t of) { return block + of * shard_bytes; };
  for (uint32_t i = 1; i < size; ++i) {
    const uint32_t from = (rank + size - i) % size;
    receive(from, shard(from), shard_bytes);
  }
  for (uint32_t i = 1; i < size; ++i) send((rank + i) % size, shard(rank), shard_bytes);
}

void Transfers::wait() {
  PeerWatch& watch = transport_.rendezvous_.watch();
  if (done_ < transfers_.size()) watch.set_waiting(number_, collective_);
  for (; done_ < transfers_.size(); ++done_) {
    watch.set_waiting_for(transfers_[done_].peer);
    transport_.await(*transfers_[done_].work, transfers_[done_].peer, collective_);
  }
  watch.set_waiting(0);
}

}  // namespace elixir
