// Every order in which ranks load, a folder is restored, values are set and steps are posted, with
// the job's own machine: nothing is refused, nobody waits for ever, and the job trains at the end.

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "base/compute_type_names.h"
#include "daemon/job_machine.h"
#include "shm/load_part.h"
#include "shm/shape.h"
#include "tests/support/every_case.h"

namespace elixir::daemon {
namespace {

// What a rank does next; it goes on when that is done.
struct Move {
  enum class Kind : uint8_t { kLoad, kTaken, kMeet, kFolder, kFolderOver, kPost, kFinished };
  Kind kind = Kind::kMeet;
  uint32_t number = 0;  // chunk, or step
  shm::LoadPart part = shm::LoadPart::kWhole;
  uint32_t slot = 0;   // that carries the chunk
  uint32_t times = 0;  // kTaken: loads of the slot, this one among them
};
using Script = std::vector<Move>;

struct Cell {
  ComputeType type = ComputeType::kFp32;
  uint32_t ranks = 1, chunks = 1, frozen = 0;
  uint32_t in_flight = 1;   // chunks that a rank loads at a time
  bool collective = false;  // every rank loads its shards, and each node's first one a folder
  bool folder = false;      // in the place of values
  bool set_values = false;  // then new values of one chunk, twice
  bool load_later = false;  // then a folder between two steps

  std::string name() const {
    return fmt::format("{} of {} ranks, {} chunks, {} frozen, {} at a time, {}{}{}{}",
                       compute_type_name(type), ranks, chunks, frozen, in_flight,
                       collective ? "collective" : "host", folder ? ", folder" : ", values",
                       set_values ? ", values set" : "", load_later ? ", loaded later" : "");
  }
  shm::Shape shape() const {
    return {.type = type, .ranks = ranks, .n_chunks = chunks, .n_frozen_chunks = frozen};
  }
};

// The calls of client/train, as one rank makes them.
class Calls {
 public:
  Calls(const Cell& cell, uint32_t rank)
      : cell_(cell), loads_(cell.collective || rank == 0), first_(rank == 0) {
    if (cell.folder) {
      restore();
    } else {
      std::vector<uint32_t> chunks(cell.chunks + cell.frozen);
      std::iota(chunks.begin(), chunks.end(), 0);
      std::rotate(chunks.begin(), chunks.begin() + cell.chunks, chunks.end());  // frozen ones first
      load(chunks);
    }
    meet();
    if (cell.set_values) {
      for (int time = 0; time < 2; ++time) {
        meet();
        load({cell.chunks + cell.frozen - 1});
        meet();
      }
    }
    step(1);
    if (cell.load_later) {
      meet();
      restore();
      meet();
    }
    step(2);
  }

  Script take() { return std::move(script_); }

 private:
  using Kind = Move::Kind;

  // As so many threads do: who has all of a chunk taken begins the next one.
  void load(const std::vector<uint32_t>& chunks) {
    if (!loads_) return;
    std::deque<std::deque<Move>> waiting, in_flight;
    for (const uint32_t chunk : chunks) {
      std::deque<Move>& parts = waiting.emplace_back();
      const uint32_t slot = cell_.shape().load_slot(chunk);
      if (cell_.shape().frozen(chunk)) {
        parts.push_back({Kind::kLoad, chunk, shm::LoadPart::kWhole, slot});
        continue;
      }
      for (const shm::LoadPart part : shm::load_parts(cell_.type)) {
        parts.push_back({Kind::kLoad, chunk, part, slot});
      }
    }
    while (!waiting.empty() || !in_flight.empty()) {
      if (!waiting.empty() && in_flight.size() < cell_.in_flight) {
        in_flight.push_back(std::move(waiting.front()));
        waiting.pop_front();
        begin_part(in_flight.back());
        continue;
      }
      std::deque<Move> parts = std::move(in_flight.front());
      in_flight.pop_front();
      script_.push_back(parts.front());
      parts.pop_front();
      if (parts.empty()) continue;
      begin_part(parts);
      in_flight.push_back(std::move(parts));
    }
  }
  // Asks for the first part, whose place the wait for it takes.
  void begin_part(std::deque<Move>& parts) {
    Move& part = parts.front();
    script_.push_back(part);
    part.kind = Kind::kTaken;
    part.times = ++taken_[part.slot];
  }
  void restore() {
    if (!first_) return;
    script_.push_back({Kind::kFolder});
    script_.push_back({Kind::kFolderOver});
  }
  void meet() { script_.push_back({Kind::kMeet, ++meetings_}); }
  void step(uint32_t number) {
    script_.push_back({Kind::kPost, number});
    script_.push_back({Kind::kFinished, number});
  }

  const Cell cell_;
  const bool loads_, first_;
  std::map<uint32_t, uint32_t> taken_;
  uint32_t meetings_ = 0;
  Script script_;
};

struct State {
  JobMachine machine;
  std::vector<uint32_t> at;     // each rank's place in its script
  std::vector<uint32_t> queue;  // ranks whose loads elixird has not taken, the oldest first
  bool restored = false;        // the last folder, and nobody has heard of it

  // Two states of one key are equal: the machine follows from it.
  std::string key() const {
    std::string key;
    for (const uint32_t place : at) key += static_cast<char>(place);
    key += '/';
    for (const uint32_t rank : queue) key += static_cast<char>(rank);
    key += static_cast<char>(machine.activity());
    key += static_cast<char>(2 * machine.finished_step() + (restored ? 1 : 0));
    return key;
  }
};

class Exploration {
 public:
  explicit Exploration(const Cell& cell) : cell_(cell) {
    for (uint32_t rank = 0; rank < cell.ranks; ++rank) {
      scripts_.push_back(Calls(cell, rank).take());
    }
  }

  // "", or what went wrong.
  std::string run() {
    State start{JobMachine(cell_.type, cell_.ranks, {cell_.chunks, cell_.frozen},
                           cell_.collective ? cell_.ranks : 1),
                std::vector<uint32_t>(cell_.ranks),
                {}};
    for (uint32_t rank = 0; rank < cell_.ranks; ++rank) {
      if (!start.machine.claim(rank, rank).ok()) return "a place is refused";
      start.machine.attached(rank);
    }
    std::vector<State> open{std::move(start)};
    seen_[open.back().key()] = true;
    while (!open.empty() && wrong_.empty()) {
      const State state = std::move(open.back());
      open.pop_back();
      for (State& next : after(state)) {
        if (seen_.emplace(next.key(), true).second) open.push_back(std::move(next));
      }
    }
    return wrong_;
  }
  size_t states() const { return seen_.size(); }
  size_t most_queued() const { return most_queued_; }

 private:
  std::vector<State> after(const State& state) {
    std::vector<State> next;
    bool over = true;
    for (uint32_t rank = 0; rank < cell_.ranks; ++rank) {
      if (state.at[rank] == scripts_[rank].size()) continue;
      over = false;
      State moved = state;
      if (moves(moved, rank)) next.push_back(std::move(moved));
    }
    State worked = state;
    if (elixird_works(worked)) next.push_back(std::move(worked));
    if (next.empty() && !over) wrong_ = "everybody waits: " + where(state);
    if (next.empty() && over && state.machine.finished_step() != 2) wrong_ = "steps are missing";
    return next;
  }

  const Move* next_of(const State& state, uint32_t rank) const {
    const uint32_t at = state.at[rank];
    return at < scripts_[rank].size() ? &scripts_[rank][at] : nullptr;
  }

  // Whether the rank goes on.
  bool moves(State& state, uint32_t rank) {
    const Move& move = *next_of(state, rank);
    JobMachine& machine = state.machine;
    Status status;
    switch (move.kind) {
      case Move::Kind::kLoad:
        status = machine.request_load({rank, move.number, move.slot, move.part});
        state.queue.push_back(rank);
        most_queued_ = std::max(most_queued_, state.queue.size());
        break;
      case Move::Kind::kTaken:
        if (machine.loads_taken(rank, move.slot) < move.times) return false;
        break;
      case Move::Kind::kMeet: {  // AwaitReady of all ranks: the last one lets all go
        if (machine.phase() != JobPhase::kTraining) return false;
        for (uint32_t other = 0; other < cell_.ranks; ++other) {
          const Move* of = next_of(state, other);
          if (of == nullptr || of->kind != move.kind || of->number != move.number) return false;
        }
        for (uint32_t& at : state.at) ++at;
        return true;
      }
      case Move::Kind::kFolder:
        status = machine.request_restore();
        break;
      case Move::Kind::kFolderOver:
        if (!state.restored) return false;
        state.restored = false;
        break;
      case Move::Kind::kPost:
        status = machine.note_posted(rank, move.number);
        break;
      case Move::Kind::kFinished:
        if (machine.finished_step() < move.number) return false;
        break;
    }
    if (!status.ok()) wrong_ = status.message() + ": " + where(state);
    ++state.at[rank];
    return true;
  }

  bool elixird_works(State& state) {
    JobMachine& machine = state.machine;
    switch (machine.activity()) {
      case Activity::kNone:
        return machine.start_next().activity != Activity::kNone;
      case Activity::kRestore:
        machine.finish_restore(true);
        state.restored = true;
        return true;
      case Activity::kLoad:
        state.queue.erase(state.queue.begin());
        [[fallthrough]];
      default:
        machine.finish_activity();
        return true;
    }
  }

  std::string where(const State& state) const {
    std::string text = fmt::format("the job is {}", job_phase_name(state.machine.phase()));
    for (uint32_t rank = 0; rank < cell_.ranks; ++rank) {
      text += fmt::format(", rank {} at {} of {}", rank, state.at[rank], scripts_[rank].size());
    }
    return text;
  }

  const Cell cell_;
  std::vector<Script> scripts_;
  std::map<std::string, bool> seen_;
  size_t most_queued_ = 0;
  std::string wrong_;
};

// Two halves of every chunk square the orders: of few ranks.
ComputeType type_for(uint32_t ranks) {
  return ranks <= 2 ? ComputeType::kBf16 : ComputeType::kFp32;
}

// Over all ranks: the three largest cells take three quarters of the time.
const uint32_t kMostChunksOfAll = every_case() ? 28 : 14;

TEST(LoadProtocol, NothingIsRefusedAndNobodyWaitsForEver) {
  size_t cells = 0, states = 0;
  for (const uint32_t ranks : {1u, 2u, 3u, 4u}) {
    for (const uint32_t chunks : {1u, 2u, 3u, 4u, 7u}) {
      if (ranks * chunks > kMostChunksOfAll) continue;
      for (const bool collective : {false, true}) {
        for (int way = 0; way < 8; ++way) {
          const Cell cell{.type = type_for(ranks),
                          .ranks = ranks,
                          .chunks = chunks,
                          .collective = collective,
                          .folder = (way & 1) != 0,
                          .set_values = (way & 2) != 0,
                          .load_later = (way & 4) != 0};
          Exploration exploration(cell);
          EXPECT_EQ(exploration.run(), "") << cell.name();
          states += exploration.states();
          ++cells;
        }
      }
    }
  }
  EXPECT_EQ(cells, every_case() ? 4u * 5 * 2 * 8 : (4u * 5 - 3) * 2 * 8);
  EXPECT_GT(states, 10'000u);
}

// A trainer loads up to three chunks at a time, each through a slot of its own (client/exchange),
// and frozen chunks through slots of the others.
TEST(LoadProtocol, SeveralLoadsOfARankAndFrozenChunksChangeNothing) {
  size_t several = 0;
  for (const uint32_t ranks : {1u, 2u, 3u}) {
    for (const uint32_t chunks : {1u, 2u, 3u, 4u}) {
      for (const uint32_t frozen : {0u, 1u, 3u}) {
        for (const uint32_t in_flight : {1u, 2u, 3u}) {
          if (in_flight > chunks) continue;  // slots
          for (const bool collective : {false, true}) {
            if (collective && ranks > 2) continue;  // orders of nine loads
            const Cell cell{.type = type_for(ranks),
                            .ranks = ranks,
                            .chunks = chunks,
                            .frozen = frozen,
                            .in_flight = in_flight,
                            .collective = collective,
                            .set_values = true,
                            .load_later = true};
            Exploration exploration(cell);
            EXPECT_EQ(exploration.run(), "") << cell.name();
            several += exploration.most_queued() >= 3 * (collective ? ranks : 1) ? 1 : 0;
          }
        }
      }
    }
  }
  EXPECT_GE(several, 10u) << "cells in which each rank that loads has three loads queued";
}

}  // namespace
}  // namespace elixir::daemon
