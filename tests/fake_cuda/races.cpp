#include "tests/fake_cuda/races.h"

#include <execinfo.h>

#include <array>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "tests/fake_cuda/device_memory.h"
#include "tests/fake_cuda/runtime.h"
#include "tests/fake_cuda/symbols.h"

namespace fake_cuda {
namespace {

constexpr int kStackFrames = 24;
constexpr size_t kMostReports = 20;

// A work that was enqueued, as later ones must know it.
struct Past {
  const char* name;
  int stream;
  uint64_t number;  // the stream's
  std::array<void*, kStackFrames> stack;
  int frames;
};
using PastPtr = std::shared_ptr<const Past>;

// Bytes with the same history.
struct Range {
  uintptr_t end = 0;
  PastPtr write;               // the last
  std::vector<PastPtr> reads;  // since then, the last of each stream
};

struct Races {
  std::map<uintptr_t, Range> ranges;  // by begin
  uint64_t found = 0;
  std::set<std::string> told;
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
};
Races& races() {
  static auto* const instance = new Races;
  return *instance;
}

// Cuts the range that reaches over `at`, so that one begins there.
void cut(uintptr_t at) {
  auto& ranges = races().ranges;
  auto next = ranges.upper_bound(at);
  if (next == ranges.begin()) return;
  const auto range = std::prev(next);
  if (range->first == at || range->second.end <= at) return;
  ranges.emplace(at, range->second);
  range->second.end = at;
}

bool ordered_after(const Stream& stream, const Past& past, bool on_device) {
  const VectorClock& known = on_device ? stream.order.device : stream.order.host;
  return known.of(static_cast<size_t>(past.stream)) >= past.number;
}

std::string describe(const Past& past, bool writes) {
  return std::string(past.name) + " on stream " + std::to_string(past.stream) +
         (writes ? ", which writes" : ", which reads");
}

std::vector<std::string> stack_of(const Past& past) {
  return symbol_names(past.stack.data(), past.frames);
}

void print_stack(const char* what, const std::vector<std::string>& stack) {
  std::fprintf(stderr, "  %s was enqueued by\n", what);
  for (const std::string& name : stack) std::fprintf(stderr, "    %s\n", name.c_str());
}

void tell(const Past& earlier, bool earlier_writes, const Past& later, bool later_writes,
          uintptr_t begin, size_t bytes) {
  ++races().found;
  const std::string first = describe(earlier, earlier_writes);
  const std::string second = describe(later, later_writes);
  if (races().told.size() >= kMostReports || !races().told.insert(first + second).second) return;
  const auto first_stack = stack_of(earlier), second_stack = stack_of(later);
  std::fprintf(stderr, "fake CUDA: race: on %zu bytes at 0x%zx, %s, is not ordered after %s them\n",
               bytes, static_cast<size_t>(begin), second.c_str(), first.c_str());
  print_stack(earlier.name, first_stack);
  print_stack(later.name, second_stack);
  races().list.push_back({{"first", first},
                          {"second", second},
                          {"bytes", bytes},
                          {"first_stack", first_stack},
                          {"second_stack", second_stack}});
}

class Check {
 public:
  Check(const Stream& stream, PastPtr now, const Access& access)
      : stream_(stream),
        now_(std::move(now)),
        access_(access),
        on_device_(device_of(reinterpret_cast<void*>(access.begin)) >= 0) {}

  void run() {
    auto& ranges = races().ranges;
    const uintptr_t end = access_.begin + access_.bytes;
    cut(access_.begin);
    cut(end);
    uintptr_t at = access_.begin;
    for (auto range = ranges.lower_bound(at); range != ranges.end() && range->first < end;
         ++range) {
      if (at < range->first) note(ranges.emplace_hint(range, at, Range{range->first, {}, {}}));
      compare(range);
      note(range);
      at = range->second.end;
    }
    if (at < end) note(ranges.emplace(at, Range{end, {}, {}}).first);
  }

 private:
  using Place = std::map<uintptr_t, Range>::iterator;

  void compare(Place place) {
    const Range& range = place->second;
    if (range.write) compare(*range.write, /*earlier_writes=*/true, place);
    if (!access_.writes) return;
    for (const PastPtr& read : range.reads) compare(*read, /*earlier_writes=*/false, place);
  }

  void compare(const Past& earlier, bool earlier_writes, Place place) {
    if (ordered_after(stream_, earlier, on_device_)) return;
    tell(earlier, earlier_writes, *now_, access_.writes, place->first,
         place->second.end - place->first);
  }

  void note(Place place) {
    Range& range = place->second;
    if (access_.writes) {
      range.write = now_;
      range.reads.clear();
      return;
    }
    std::erase_if(range.reads, [&](const PastPtr& read) { return read->stream == now_->stream; });
    range.reads.push_back(now_);
  }

  const Stream& stream_;
  const PastPtr now_;
  const Access access_;
  const bool on_device_;
};

}  // namespace

void check_accesses(const Stream& stream, const Work& work) {
  if (work.accesses.empty()) return;
  auto now = std::make_shared<Past>(Past{.name = work.name,
                                         .stream = stream.number,
                                         .number = stream.works,
                                         .stack = {},
                                         .frames = 0});
  now->frames = backtrace(now->stack.data(), kStackFrames);
  // Reads first: a work does not race with itself.
  for (const bool writes : {false, true}) {
    for (const Access& access : work.accesses) {
      if (access.writes == writes && access.bytes > 0) Check(stream, now, access).run();
    }
  }
}

void forget_accesses(uintptr_t begin, size_t bytes) {
  cut(begin);
  cut(begin + bytes);
  auto& ranges = races().ranges;
  ranges.erase(ranges.lower_bound(begin), ranges.lower_bound(begin + bytes));
}

uint64_t races_found() { return races().found; }
nlohmann::ordered_json races_json() { return races().list; }

}  // namespace fake_cuda
