#include "client/collectives/rendezvous.h"

#include <unistd.h>

#include <cstdlib>
#include <map>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/clock.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/processors.h"
#include "client/ranks/seconds_setting.h"
#include "client/ranks/tcp.h"
#include "client/ranks/without_sigpipe.h"
#include "client/tensors/torch_failure.h"

namespace elixir {
namespace {

constexpr double kWatchS = 25;  // for all ranks to connect to the watch, once they have met
constexpr useconds_t kPollMicroseconds = 20'000, kSlowPollMicroseconds = 200'000;
constexpr size_t kMaxNamed = 8;
constexpr uint32_t kMaxAsking = 256;
// Added to a count of ranks, it says that one of them has given up; the key "failure" says why.
constexpr int64_t kGivenUp = int64_t{1} << 40;
constexpr double kLingerS = 2;  // for the others to read that before the store ends

using StorePtr = c10::intrusive_ptr<c10d::Store>;

std::string first_interface() {
  const char* list = std::getenv("GLOO_SOCKET_IFNAME");
  const std::string names = list == nullptr ? "" : list;
  return names.substr(0, names.find(','));
}

Status store_failure(const LaunchEnvironment& environment, const std::exception& failure) {
  return error(Code::kUnavailable,
               "the rendezvous at {} broke off: {}. Look at the output of rank 0, and see that "
               "nothing else uses that port",
               endpoint_name(environment.master_address, environment.master_port),
               failure_text(failure));
}

Status check_master(const LaunchEnvironment& environment) {
  if (!environment.master_address.empty() && environment.master_port != 0) return Status();
  return error(Code::kInvalidArgument,
               "{} ranks must meet, and {} of rank 0 is known: set {} to {} on every node ({} "
               "started this one)",
               environment.world_size,
               environment.master_address.empty() ? "no address" : "no port",
               environment.master_address.empty() ? "MASTER_ADDR" : "MASTER_PORT",
               environment.master_address.empty() ? "the address of rank 0's node"
                                                  : "a TCP port that is free there",
               environment.starter);
}

// Rank 0's store. On one node nobody outside can connect to it. It shares the port with every other
// store of this process, earlier or later: torch's init_process_group hosts one at the same
// address.
StorePtr host_store(const LaunchEnvironment& environment, c10d::TCPStoreOptions options) {
  options.isServer = true;
  options.waitWorkers = false;  // we wait ourselves, and report for which ranks
  options.multiTenant = true;
  if (environment.one_node() && is_loopback(environment.master_address)) {
    Result<UniqueFd> listener = listen_tcp(environment.master_address, environment.master_port);
    // Else the store checks whether this process already listens there, and reports it if not.
    if (listener.ok()) options.masterListenFd = listener->release();
  }
  return c10::make_intrusive<c10d::TCPStore>(environment.master_address, options);
}

Result<StorePtr> connect_store(const LaunchEnvironment& environment, double timeout_s) {
  c10d::TCPStoreOptions options;
  options.port = environment.master_port;
  options.timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1000));
  const bool host = environment.rank == 0 && !environment.starter_hosts_store;
  if (!host) {
    const Result<UniqueFd> socket = connect_tcp(
        environment.master_address, environment.master_port, timeout_s,
        environment.starter_hosts_store ? "torchrun's store" : "rank 0",
        "start rank 0 there, with the same MASTER_ADDR and MASTER_PORT on every node, and let "
        "firewalls pass TCP between the nodes" +
            environment.and_why());
    if (!socket.ok()) return socket.status();
  }
  const WithoutSigpipe guard;  // for the store's thread
  try {
    return host
               ? host_store(environment, options)
               : StorePtr(c10::make_intrusive<c10d::TCPStore>(environment.master_address, options));
  } catch (const std::exception& failure) {
    return store_failure(environment, failure);
  }
}

// The store of all optimizers of this rank in this process: the job has one address, and one
// listener can use it. The store stays open, because a rank that builds its next optimizer must not
// meet another rank's previous one. It is never destroyed: a forked child's exit() would wait for
// its thread.
struct OpenStore {
  StorePtr store;
  std::map<std::string, uint32_t> joins = {};  // by job; each join has its own prefix
};

// The store under a prefix of the job and of how many of its optimizers came before.
Result<StorePtr> open_store(const LaunchEnvironment& environment, double timeout_s) {
  const std::string prefix = "elixir/" + environment.job;
  if (environment.world_size == 1) {
    return StorePtr(
        c10::make_intrusive<c10d::PrefixStore>(prefix, c10::make_intrusive<c10d::HashStore>()));
  }
  ELIXIR_RETURN_IF_ERROR(check_master(environment));
  static Mutex mutex;
  static auto& stores = *new std::map<std::string, OpenStore>;
  const std::string key = fmt::format("{}:{}:{}:{}", environment.master_address,
                                      environment.master_port, environment.rank, ::getpid());
  const auto take = [&](OpenStore& open) {
    const uint32_t number = open.joins[environment.job]++;
    return StorePtr(c10::make_intrusive<c10d::PrefixStore>(
        number == 0 ? prefix : fmt::format("{}/{}", prefix, number), open.store));
  };
  {
    const MutexLock lock(mutex);
    const auto found = stores.find(key);
    if (found != stores.end()) return take(found->second);
  }
  Result<StorePtr> store = connect_store(environment, timeout_s);
  if (!store.ok()) return store;
  const MutexLock lock(mutex);
  return take(stores.insert_or_assign(key, OpenStore{std::move(*store)}).first->second);
}

}  // namespace

struct Rendezvous::State {
  LaunchEnvironment environment;
  double timeout_s = 0;
  StorePtr store;
  std::string address;
  std::vector<Member> members;
  std::unique_ptr<PeerWatch> watch;  // ends first: rank 0's store outlives the others' goodbyes

  Status choose_address();
  Status choose_other_address();
  Status join_members(const std::string& gpu_uuid);
  Status join_watch();
  Status meet(const std::string& word);
  std::string missing(const std::string& word);
  void give_up(const Status& cause);
  Status others_failure();

  bool hosts_store() const { return environment.rank == 0 && !environment.starter_hosts_store; }
  int64_t met = 0;  // ranks that had joined at the last look
};

// Leaves the address empty if the route to the master address is loopback: this is the master's
// node.
Status Rendezvous::State::choose_address() {
  if (const std::string interface = first_interface(); !interface.empty()) {
    Result<std::string> own = interface_address(interface);
    if (!own.ok()) return own.status();
    address = *own;
  } else if (environment.one_node()) {
    address = "127.0.0.1";
  } else {
    Result<std::string> own = route_address(environment.master_address, environment.master_port);
    if (!own.ok()) return own.status();
    if (!is_loopback(*own)) address = *own;
  }
  return Status();
}

// Takes the address of the route to the first rank that has one.
Status Rendezvous::State::choose_other_address() {
  if (!address.empty()) return Status();
  for (const Member& member : members) {
    const std::string other = store->get_to_str("address/" + std::to_string(member.rank));
    if (other.empty()) continue;
    Result<std::string> own = route_address(other, environment.master_port);
    if (!own.ok()) return own.status();
    address = *own;
    return Status();
  }
  return error(Code::kInvalidArgument,
               "MASTER_ADDR={} means loopback on every node, so no node knows its address in their "
               "network: give rank 0's address in their network, or set GLOO_SOCKET_IFNAME",
               environment.master_address);
}

// This takes one query per rank, so with many ranks only rank 0 asks.
std::string Rendezvous::State::missing(const std::string& word) {
  if (environment.rank != 0 && environment.world_size > kMaxAsking) return "rank 0 says which";
  std::string ranks;
  size_t count = 0;
  for (uint32_t rank = 0; rank < environment.world_size && count <= kMaxNamed; ++rank) {
    if (store->check({fmt::format("{}/{}", word, rank)})) continue;
    ++count;
    if (count <= kMaxNamed) ranks += fmt::format("{}{}", count == 1 ? "" : ", ", rank);
  }
  return fmt::format("rank{} {}{}", count == 1 ? "" : "s", ranks, count > kMaxNamed ? " ..." : "");
}

Status Rendezvous::State::meet(const std::string& word) {
  const uint32_t size = environment.world_size, rank = environment.rank;
  const int64_t start_ns = monotonic_ns();
  WaitNotes notes;
  store->set(fmt::format("{}/{}", word, rank), std::string("1"));
  // A single counter instead of a key per rank, because all ranks ask again and again.
  for (met = store->add(word, 1); met != size; met = store->add(word, 0)) {
    if (met >= kGivenUp) return others_failure();
    if (watch != nullptr) ELIXIR_RETURN_IF_ERROR(watch->status());
    const double waited_s = seconds_since(start_ns);
    if (waited_s >= timeout_s) {
      return error(Code::kTimedOut,
                   "{} of {} ranks have come to the rendezvous at {} within {:.0f} s; missing: {}. "
                   "See whether they were started, and what they say; "
                   "ELIXIR_RENDEZVOUS_TIMEOUT_S allows more{}",
                   met, size, endpoint_name(environment.master_address, environment.master_port),
                   timeout_s, missing(word), environment.and_why());
    }
    if (notes.due(waited_s)) {
      log_info("rendezvous",
               "at={} for={} come={} of={} missing=\"{}\" waited_s={:.0f} "
               "limit_s={:.0f} because=\"{}\"",
               endpoint_name(environment.master_address, environment.master_port), word, met, size,
               missing(word), waited_s, timeout_s, environment.ranks_said);
    }
    ::usleep(waited_s < 1 ? kPollMicroseconds : kSlowPollMicroseconds);
  }
  return Status();
}

// Tells the ranks that wait in join() why, and gives them time to read it.
void Rendezvous::State::give_up(const Status& cause) {
  const auto code = static_cast<int>(cause.code());
  const std::string own = fmt::format("{}\t{}", code, cause.message());
  if (!store->check({"failure"})) store->set("failure", own);
  store->add("start", kGivenUp);
  if (environment.rank == 0 && !store->check({"watch"})) store->set("watch", std::string());
  int64_t gone = store->add("gone", 1);
  for (const int64_t start_ns = monotonic_ns();
       hosts_store() && gone < met % kGivenUp && seconds_since(start_ns) < kLingerS;) {
    ::usleep(kPollMicroseconds);
    gone = store->add("gone", 0);
  }
}

Status Rendezvous::State::others_failure() {
  const std::string text = store->get_to_str("failure");
  const size_t tab = text.find('\t');
  const int code = std::atoi(text.c_str());
  return Status(code > 0 ? static_cast<Code>(code) : Code::kUnavailable,
                tab == text.npos ? "a rank gave up the rendezvous" : text.substr(tab + 1));
}

Status Rendezvous::State::join_members(const std::string& gpu_uuid) {
  const std::string rank = std::to_string(environment.rank);
  const Member self{environment.rank, static_cast<uint32_t>(::getpid()), host_name(), gpu_uuid};
  store->set("address/" + rank, address);
  store->set("member/" + rank, encode_member(self));
  ELIXIR_RETURN_IF_ERROR(meet("start"));
  std::vector<std::string> keys;
  for (uint32_t other = 0; other < environment.world_size; ++other) {
    keys.push_back("member/" + std::to_string(other));
  }
  for (const std::vector<uint8_t>& text : store->multiGet(keys)) {
    Result<Member> member = decode_member(std::string(text.begin(), text.end()));
    if (!member.ok()) return member.status();
    members.push_back(std::move(*member));
  }
  ELIXIR_RETURN_IF_ERROR(refuse_shared_gpus(members));
  return choose_other_address();
}

Status Rendezvous::State::join_watch() {
  Result<std::unique_ptr<PeerWatch>> own = Status(Code::kInternal, "no watch");
  if (environment.rank == 0) {
    own = PeerWatch::listen(address, members);
    if (own.ok()) store->set("watch", (*own)->endpoint().encode());
  } else {
    store->wait({"watch"}, std::chrono::milliseconds(static_cast<int64_t>(kWatchS * 1000)));
    const std::string text = store->get_to_str("watch");
    if (text.empty()) return others_failure();
    const Result<WatchEndpoint> endpoint = WatchEndpoint::decode(text);
    if (!endpoint.ok()) return endpoint.status();
    own = PeerWatch::connect(*endpoint, environment.rank, members, kWatchS);
  }
  if (!own.ok()) return own.status();
  watch = std::move(*own);
  if (environment.rank != 0) return Status();
  const Status connected = watch->await_connected(kWatchS);
  if (!connected.ok()) watch->report(connected);
  return connected;
}

Result<std::unique_ptr<Rendezvous>> Rendezvous::join(const LaunchEnvironment& environment,
                                                     const RendezvousOptions& options) {
  auto state = std::make_unique<State>();
  state->environment = environment;
  const Result<double> timeout_s = seconds_setting(options.timeout_s, "ELIXIR_RENDEZVOUS_TIMEOUT_S",
                                                   RendezvousOptions::kDefaultTimeoutSeconds);
  if (!timeout_s.ok()) return timeout_s.status();
  state->timeout_s = *timeout_s;
  Result<StorePtr> store = open_store(environment, *timeout_s);
  if (!store.ok()) return store.status();
  state->store = std::move(*store);
  ELIXIR_RETURN_IF_ERROR(state->choose_address());
  try {
    Status joined = state->join_members(options.gpu_uuid);
    if (joined.ok()) joined = state->join_watch();
    if (!joined.ok()) {
      state->give_up(joined);
      return joined;
    }
  } catch (const std::exception& failure) {
    return store_failure(environment, failure);
  }
  return std::unique_ptr<Rendezvous>(new Rendezvous(std::move(state)));
}

Rendezvous::Rendezvous(std::unique_ptr<State> state) : state_(std::move(state)) {}
Rendezvous::~Rendezvous() = default;

uint32_t Rendezvous::rank() const { return state_->environment.rank; }
uint32_t Rendezvous::size() const { return state_->environment.world_size; }
const std::vector<Member>& Rendezvous::members() const { return state_->members; }
const std::string& Rendezvous::address() const { return state_->address; }
const c10::intrusive_ptr<c10d::Store>& Rendezvous::store() const { return state_->store; }
PeerWatch& Rendezvous::watch() const { return *state_->watch; }

Status Rendezvous::meet(const std::string& word) const {
  try {
    return state_->meet(word);
  } catch (const std::exception& failure) {
    // The store ends with rank 0, so the watch knows more.
    const Status known = state_->watch->await_status(2);
    return known.ok() ? store_failure(state_->environment, failure) : known;
  }
}

}  // namespace elixir
