#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "daemon/job_work.h"
#include "tests/daemon/fake_job.h"
#include "tests/support/matchers.h"

namespace elixir::testing {

// A job without sockets: only memory, slices and work. All its gradients are those of step 1.
struct Bench {
  struct Options {
    FakeModel model;
    std::vector<uint32_t> thread_limits = {1};  // one per group of workers
    uint64_t slice_numel = 64;
    bool redo_records = true;
  };
  FakeModel model;
  daemon::SliceTable slices;
  std::vector<std::unique_ptr<daemon::SessionMemory>> memory;
  std::vector<const daemon::SessionMemory*> ranks_memory;
  std::unique_ptr<daemon::ParameterUpdates> updates;
  std::unique_ptr<daemon::StateSlots> slots;
  std::unique_ptr<daemon::JobWork> work;
  std::unique_ptr<daemon::GradTracker> tracker;
  uint32_t steps = 0;

  explicit Bench(const Options& given) : model(given.model) {
    const auto ranks = model.shape.ranks;
    const auto n_groups = static_cast<uint32_t>(given.thread_limits.size());
    daemon::JobWork::Options options;
    options.shape = model.shape;
    options.thread_limits = given.thread_limits;
    std::vector<uint32_t> group_of_rank, shards;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      memory.push_back(std::make_unique<daemon::SessionMemory>(
          must(daemon::SessionMemory::create({model.shape, 1, rank, -1}))));
      options.ranks.push_back({memory.back().get(), rank});
      shards.push_back(rank);
      const uint32_t group = rank % n_groups;
      group_of_rank.push_back(given.thread_limits[group] == 0 ? 0 : group);
    }
    for (const auto& one : memory) ranks_memory.push_back(one.get());
    updates = std::make_unique<daemon::ParameterUpdates>(model.shape, model.places, shards);
    options.updates = updates.get();
    slots = std::make_unique<daemon::StateSlots>(model.shape);
    options.slots = slots.get();
    options.redo_records = given.redo_records;
    slices = daemon::cut_slices(model.shape, updates->used_numel(), given.slice_numel,
                                {shards, group_of_rank}, n_groups);
    options.slices = slices;
    work = std::make_unique<daemon::JobWork>(std::move(options));
    tracker = std::make_unique<daemon::GradTracker>(ranks, model.shape.n_chunks, shm::StepRules{});
    fill_grads();
  }
  Bench(uint32_t ranks, uint64_t chunk_numel, const std::vector<uint32_t>& thread_limits)
      : Bench(Options{.model = make_model(ComputeType::kFp32, ranks, 3, chunk_numel),
                      .thread_limits = thread_limits}) {}

  std::byte* grad_slot(uint32_t rank, uint32_t chunk) {
    return memory[rank]->grads().data() + model.shape.grad_slot_offset(chunk);
  }
  void fill_grads() {
    for (uint32_t rank = 0; rank < memory.size(); ++rank) {
      for (uint32_t chunk = 0; chunk < model.shape.n_chunks; ++chunk) {
        const std::vector<std::byte> grads = fake_gradient(model, rank, chunk, 1);
        std::memcpy(grad_slot(rank, chunk), grads.data(), grads.size());
      }
      for (uint32_t step = 0; step < shm::kStepRing; ++step) {
        for (uint32_t i = 0; i < model.shape.n_parameters; ++i) {
          memory[rank]->grad_groups(step)[i].store(model.grad_group(i, step));
        }
      }
    }
  }

  void begin_step() {
    ++steps;
    daemon::StepWork step{.step = steps, .completes_step = true};
    std::vector<daemon::ChunkTask> tasks;
    tracker->start_updates(&tasks);
    tracker->next_step();
    shm::StepRecord record = make_record(steps, 1);
    record.groups[0] = {1e-3, 0.01, {0.9, 0.999, 1e-8}};
    updates->next_step();
    updates->begin(record, steps, 1.0);
    for (const daemon::ChunkTask& task : tasks) {
      EXPECT_EQ(updates->read(task.chunk, steps, ranks_memory, 1).text, "");
      updates->update(task.chunk);
    }
    work->begin_tasks(tasks, step, *tracker, 0);
  }
};

}  // namespace elixir::testing
