#pragma once

#include <memory>
#include <string>
#include <vector>

#include "optim_cpu/adam.h"
#include "tests/daemon/fake_trainer.h"

namespace elixir::testing {

// A small model cut into chunks, with gaps as alignment makes them.
struct FakeModel {
  shm::Shape shape;
  std::vector<shm::ParameterPlace> places;
};
FakeModel make_model(ComputeType type, uint32_t ranks, uint32_t n_chunks, uint64_t chunk_numel);

// Deterministic values: the same seed, the same numbers.
std::vector<float> random_values(uint64_t seed, uint64_t numel, float scale);
// One rank's gradient of a chunk and step, of the model's type.
std::vector<std::byte> fake_gradient(const FakeModel& model, uint32_t rank, uint32_t chunk,
                                     uint32_t step);
std::vector<std::vector<float>> initial_values(const FakeModel& model);
shm::StepRecord make_record(uint32_t step, uint32_t ranks);

// What elixird should arrive at: whole chunks, updated by the scalar kernel.
class Reference {
 public:
  explicit Reference(const FakeModel& model);
  void step(const shm::StepRecord& record);
  const std::vector<std::byte>& param(uint32_t chunk) const { return chunks_[chunk].param; }
  std::vector<float> masters(uint32_t chunk) const;

 private:
  struct Chunk {
    std::vector<std::byte> param, master;
    std::vector<float> exp_avg, exp_avg_sq;
  };
  const FakeModel model_;
  std::vector<Chunk> chunks_;
};

// All ranks of a job, driven from one thread, in step.
class FakeJob {
 public:
  struct Options {
    shm::RuntimeFolder folder;
    std::string name = "job";
    FakeModel model;
    uint32_t workers = 0;
  };
  // Attached and said hello, not loaded.
  static Result<std::unique_ptr<FakeJob>> attach(const Options& options);
  // Attached and loaded.
  static Result<std::unique_ptr<FakeJob>> start(const Options& options);

  Status load();
  void write_grads(uint32_t rank, uint32_t step);
  void post(uint32_t step);    // gradients and verdict of every rank
  Status step(uint32_t step);  // post and wait
  // Every element up to each parameter's end equals the reference's, bit for bit.
  Status compare(const Reference& reference) const;
  void detach();

  FakeTrainer& rank(uint32_t rank) { return *ranks_[rank]; }
  const FakeModel& model() const { return options_.model; }
  std::vector<std::unique_ptr<FakeTrainer>>& ranks() { return ranks_; }

 private:
  explicit FakeJob(const Options& options) : options_(options) {}
  const Options options_;
  std::vector<std::unique_ptr<FakeTrainer>> ranks_;
};

}  // namespace elixir::testing
