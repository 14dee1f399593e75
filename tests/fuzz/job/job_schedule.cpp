#include "tests/fuzz/job/job_schedule.h"

#include <cstring>
#include <vector>

#include "tests/fuzz/job/fuzzed_job.h"
#include "tests/fuzz/job/scripted_rank.h"

namespace elixir::fuzz {
namespace {

constexpr int kMostOperations = 600;
constexpr int kMostRounds = 4000;  // in which everything that is under way happens

struct World {
  explicit World(const JobSetup& setup) : job(setup) {
    for (uint32_t rank = 0; rank < job.ranks(); ++rank) scripts.emplace_back(&job, rank);
  }

  // Everything once: the start, workers, each script. True when anything moved.
  bool move_all(bool rings) {
    bool moved = job.advance_start();
    for (ScriptedRank& script : scripts) moved = script.advance(rings) || moved;
    if (job.has_slices()) {
      job.run_slices(UINT32_MAX);
      moved = true;
    }
    return job.deliver() || moved;
  }

  FuzzedJob job;
  std::vector<ScriptedRank> scripts;
  bool left = false;  // a rank died, or was stopped, before its last step
};

// ---- what a hostile trainer does ----

uint32_t odd_value(Input& input, uint32_t now) {
  switch (input.below(8)) {
    case 0:
      return 0;
    case 1:
      return UINT32_MAX - input.below(3);
    case 2:
      return now - 1;
    case 3:
      return now + 1;
    case 4:
      return now + 2 + input.below(4);
    case 5:
      return input.below(12);
    case 6:
      return input.take<uint32_t>();
    default:
      return now;
  }
}

void store_odd(Input& input, std::atomic<uint32_t>& word) {
  word.store(odd_value(input, word.load()));
}

void meddle_with_record(FuzzedJob& job, const daemon::SessionMemory& memory, Input& input) {
  const shm::Shape& shape = job.setup().model.shape;
  const uint32_t step = memory.header().posted_step.load() + input.below(3);
  std::byte* const at = memory.control().data() + shape.step_records_offset() +
                        step % shm::kStepRing * sizeof(shm::StepRecord);
  shm::StepRecord record = job.setup().record(step);
  const uint32_t kind = input.below(8);
  if (kind == 1) record.check_finite ^= 1;
  if (kind == 2) record.clip_norm = record.clip_norm > 0 ? 0 : 1;
  if (kind == 3) record.norm.nonfinite = input.below(2);
  if (kind == 4) record.metric = input.take<double>();
  if (kind >= 5) {  // any word of it: updates may be others, and cannot be counted
    const size_t word = input.take<uint8_t>() % (sizeof record / sizeof(uint64_t));
    const auto value = input.take<uint64_t>();
    std::memcpy(reinterpret_cast<std::byte*>(&record) + word * sizeof value, &value, sizeof value);
    job.nothing_counts_any_more();
  }
  std::memcpy(at, &record, sizeof record);
}

void meddle_with_grads(FuzzedJob& job, const daemon::SessionMemory& memory, Input& input) {
  constexpr uint8_t kPatterns[] = {0x00, 0x3c, 0x80, 0xff, 0x7f};
  const shm::Shape& shape = job.setup().model.shape;
  const uint64_t bytes = shape.grad_slot_numel() * element_bytes(shape.type);
  std::byte* const slot =
      memory.grads().data() + shape.grad_slot_offset(input.below(shape.n_grad_slots()));
  std::memset(slot, kPatterns[input.below(std::size(kPatterns))], bytes);
  if (job.job().phase() != daemon::JobPhase::kTraining) job.nothing_counts_any_more();
}

void meddle_with_publication(shm::GradRecord& record, Input& input) {
  shm::GradPublication word = record.grad_publication.load();
  const uint32_t kind = input.below(4);
  if (kind <= 1) word.revision = odd_value(input, word.revision);
  if (kind >= 1) word.discards = odd_value(input, word.discards) & INT32_MAX;
  if (kind == 3) word.to_sum ^= 1;
  record.grad_publication.store(word);
}

// Which parameters have a gradient, of which group.
void meddle_with_groups(FuzzedJob& job, const daemon::SessionMemory& memory, Input& input) {
  constexpr uint8_t kGroups[] = {shm::kNoGradient, 1, 2, shm::kMaxParamGroups + 1, 255};
  const uint32_t step = job.job().machine().committed_step() + input.below(3);
  const uint32_t parameters = job.setup().model.shape.n_parameters;
  const uint32_t group = input.below(2 + std::size(kGroups));
  if (group >= std::size(kGroups)) {  // of all
    for (uint32_t i = 0; i < parameters; ++i) {
      memory.grad_groups(step)[i].store(group == std::size(kGroups) ? shm::kNoGradient : 1);
    }
  } else {
    memory.grad_groups(step)[input.below(parameters)].store(kGroups[group]);
  }
}

// Any word that a trainer can write, elixird's own among them.
void meddle(FuzzedJob& job, uint32_t rank, Input& input) {
  const daemon::SessionMemory* const memory = job.memory(rank);
  if (memory == nullptr) return;
  const shm::Shape& shape = job.setup().model.shape;
  shm::ControlHeader& header = memory->header();
  const uint32_t number = input.below(shape.n_grad_slots());
  shm::ChunkRecord& chunk = memory->chunk_record(number);
  shm::GradRecord& grads = memory->grad_record(number);
  std::atomic<uint32_t>* const words[] = {
      &header.posted_step,  &header.open_step,      &grads.grad_step,        &grads.grad_micro_step,
      &header.publications, &header.committed_step, &header.finished_step,   &header.fault,
      &header.fault_rank,   &chunk.param_step,      &chunk.grad_taken,       &chunk.loads_taken,
      &chunk.waiters,       &header.param_waiters,  &header.skipped_through, &header.waiters,
      &header.awaited_sum};
  const uint32_t which = input.below(std::size(words) + 7);
  if (which < std::size(words)) {
    store_odd(input, *words[which]);
    // It fills a slot again whose values were not taken.
    if (words[which] == &chunk.loads_taken) job.nothing_counts_any_more();
    job.note_posted(rank);
  } else if (which == std::size(words)) {
    meddle_with_record(job, *memory, input);
  } else if (which == std::size(words) + 1) {
    meddle_with_grads(job, *memory, input);
  } else if (which == std::size(words) + 2) {
    meddle_with_groups(job, *memory, input);
  } else if (which < std::size(words) + 6) {
    meddle_with_publication(grads, input);
  } else {
    const uint64_t last = shape.control_bytes() / sizeof(uint32_t);
    const auto value = input.take<uint32_t>();
    std::memcpy(memory->control().data() + input.take<uint16_t>() % last * sizeof value, &value,
                sizeof value);
    job.nothing_counts_any_more();  // it may have been a hyperparameter
    job.note_posted(rank);
  }
}

// A publication that is whole, of a step, micro-step and revision near the right ones.
void publish_oddly(FuzzedJob& job, uint32_t rank, Input& input) {
  const daemon::SessionMemory* const memory = job.memory(rank);
  if (memory == nullptr || job.setup().model.shape.n_chunks == 0) return;
  const uint32_t chunk = input.below(job.setup().model.shape.n_chunks);
  shm::GradRecord& record = memory->grad_record(chunk);
  record.grad_step.store(job.job().machine().committed_step() + input.below(3));
  record.grad_micro_step.store(input.below(5));
  shm::GradPublication word = record.grad_publication.load();
  ++word.revision;
  word.to_sum = input.flag() ? 1 : 0;
  if (input.below(4) == 0) word.discards = (word.discards + input.below(3)) & INT32_MAX;
  record.grad_publication.store(word);
  memory->header().publications.fetch_add(1);
  shm::GradsPublished doorbell{};
  doorbell.chunk = chunk;
  if (input.flag()) job.ring(rank, doorbell);
}

void send_oddly(FuzzedJob& job, uint32_t rank, Input& input) {
  switch (input.below(6)) {
    case 0: {
      shm::LoadChunk message{};
      message.chunk = odd_value(input, 0);
      message.part = input.below(4);
      job.ring(rank, message);
      // It may be taken between two steps, too.
      if (job.job().phase() != daemon::JobPhase::kEnding) job.nothing_counts_any_more();
      return;
    }
    case 1: {
      shm::GradsPublished message{};
      message.chunk = odd_value(input, job.setup().model.shape.n_chunks);
      return job.ring(rank, message);
    }
    case 2: {
      shm::StepPosted message{};
      message.step = odd_value(input, 0);
      return job.ring(rank, message);
    }
    case 3:
      return job.ring(rank, shm::AwaitReady{});
    case 4:
      return job.ring(rank, shm::Hello{});
    default: {
      const auto bytes = input.take<std::array<std::byte, 48>>();
      return job.message(rank, std::span(bytes).first(input.below(49)));
    }
  }
}

// ---- a schedule ----

class Schedule {
 public:
  Schedule(Input input, ScheduleCounts* counts)
      : input_(input),
        counts_(*counts),
        honest_(take_setup(input_, /*counts=*/false)),
        hostile_(take_setup(input_, /*counts=*/true)) {
    hostile_.job.has_meddled();
  }

  void run() {
    for (int left = kMostOperations; left > 0 && !input_.empty(); --left) {
      operate();
      ++counts_.operations;
    }
    settle(honest_);
    settle(hostile_);
    end_honest();
    end_hostile();
    ++counts_.schedules;
  }

 private:
  void operate() {
    const auto byte = input_.take<uint8_t>();
    const bool hostile = (byte & 0x80) != 0;
    World& world = hostile ? hostile_ : honest_;
    const uint32_t rank = (byte >> 5 & 3) % world.job.ranks();
    const uint32_t action = byte & 31;
    FuzzedJob& job = world.job;
    if (action < 10) {
      advance(world, rank, true);
    } else if (action < 12) {
      advance(world, rank, false);
    } else if (action < 15) {
      job.run_slices(1);
    } else if (action < 17) {
      job.run_slices(UINT32_MAX);
    } else if (action < 20) {
      job.deliver();
    } else if (action == 20) {
      job.tick();
    } else if (action == 21) {
      job.fill_sums(!hostile || input_.below(8) > 0);
    } else if (action == 22) {
      ring_again(job, rank);
    } else if (action < 27) {  // much at once, or no schedule would get far
      for (uint32_t times = 1 + input_.below(40); times > 0; --times) world.move_all(true);
    } else if (action == 27) {
      world.scripts[rank].discard();
    } else if (action == 28) {
      leave(world, rank, hostile);
    } else if (!hostile) {
      advance(world, rank, true);
    } else if (action == 29) {
      meddle(job, rank, input_);
    } else if (action == 30) {
      publish_oddly(job, rank, input_);
    } else {
      send_oddly(job, rank, input_);
    }
  }

  void advance(World& world, uint32_t rank, bool rings) {
    if (!world.job.advance_start()) world.scripts[rank].advance(rings);
  }

  // Doorbells are idempotent.
  void ring_again(FuzzedJob& job, uint32_t rank) {
    if (input_.flag()) return job.ring(rank, shm::StepPosted{});
    if (job.setup().model.shape.n_chunks == 0) return;
    shm::GradsPublished doorbell{};
    doorbell.chunk = input_.below(job.setup().model.shape.n_chunks);
    job.ring(rank, doorbell);
  }

  // Seldom, and of an honest rank a death alone: it says goodbye when it has made its steps.
  void leave(World& world, uint32_t rank, bool hostile) {
    const uint32_t kind = input_.below(16);
    if (kind == 0) {
      world.left = world.job.lose(rank) || world.left;
    } else if (kind == 1 && hostile) {
      world.job.detach(rank);
    } else if (kind == 2 && hostile) {
      world.left = true;
      world.job.refuse_memory();
    } else if (kind == 3 && hostile) {
      world.job.stop();
    } else {
      advance(world, rank, true);
    }
  }

  // Until nothing moves: doorbells got lost, and ticks make up for them.
  void settle(World& world) {
    for (int rounds = 0;; ++rounds) {
      ELIXIR_EXPECT(rounds < kMostRounds, "the job goes on for ever");
      bool moved = world.job.fill_sums(true);
      moved = world.move_all(true) || moved;
      if (moved) continue;
      const uint32_t committed = world.job.job().machine().committed_step();
      world.job.tick();
      const bool woken = world.job.fill_sums(true) || world.job.has_slices() ||
                         world.move_all(true) ||
                         world.job.job().machine().committed_step() != committed;
      if (!woken) return;
    }
  }

  void end_honest() {
    honest_.job.check_numbers();
    const daemon::Job& job = honest_.job.job();
    counts_.honest_steps += job.machine().finished_step();
    counts_.skipped += job.statistics().skipped;
    if (honest_.left) {
      ELIXIR_EXPECT(honest_.job.is_over() && job.machine().fault(), "a rank died unnoticed");
      ++counts_.honest_deaths;
      return;
    }
    ELIXIR_EXPECT(!job.machine().fault(), "an honest job has a fault: {}",
                  job.machine().fault()->text);
    for (uint32_t rank = 0; rank < honest_.job.ranks(); ++rank) {
      ELIXIR_EXPECT(honest_.scripts[rank].has_finished(),
                    "rank {} waits for ever after step {} of {}", rank,
                    job.machine().finished_step(), honest_.job.setup().steps);
      honest_.job.detach(rank);
    }
    ELIXIR_EXPECT(honest_.job.is_over() && !job.machine().fault(), "not a clean end");
    ++counts_.honest_goodbyes;
  }

  void end_hostile() {
    const daemon::Job& job = hostile_.job.job();
    if (hostile_.job.is_over() && job.machine().fault()) ++counts_.hostile_faults;
    const bool finished = hostile_.scripts[0].has_finished();
    for (uint32_t rank = 0; rank < hostile_.job.ranks(); ++rank) {
      if (finished) hostile_.job.detach(rank);
      hostile_.job.lose(rank);
    }
    settle(hostile_);
    const bool came = job.sessions()[0] != nullptr;
    ELIXIR_EXPECT(!came || hostile_.job.is_over(), "all ranks have gone, and the job is not over");
    hostile_.job.check_counts();
    if (hostile_.job.is_over() && !job.machine().fault()) ++counts_.hostile_goodbyes;
    counts_.hostile_steps += job.machine().finished_step();
    counts_.skipped += job.statistics().skipped;
  }

  Input input_;
  ScheduleCounts& counts_;
  World honest_, hostile_;
};

}  // namespace

void run_schedule(std::span<const uint8_t> bytes, ScheduleCounts* counts) {
  Schedule(Input(bytes.data(), bytes.size()), counts).run();
}

}  // namespace elixir::fuzz
