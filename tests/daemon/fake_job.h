#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "optim_cpu/adam.h"
#include "optim_cpu/verdict.h"
#include "tests/daemon/fake_trainer.h"

namespace elixir::testing {

// A small model cut into chunks, with gaps as alignment makes them.
struct FakeModel {
  shm::Shape shape;
  std::vector<shm::ParameterPlace> places;
  uint32_t poison_step = 0;           // an infinite gradient on the last rank
  std::vector<uint32_t> groups = {};  // by place; empty: all of group 0
  // Values are those of a parameter's elements, wherever they lie, and zero between parameters;
  // else those of a chunk's.
  bool values_by_parameter = false;
  // Places that have no gradient in a step. Null: none.
  std::function<bool(uint32_t place, uint32_t step)> unused = {};

  // What a rank says of it, shm::GradGroup.
  uint8_t grad_group(uint32_t place, uint32_t step) const {
    if (unused && unused(place, step)) return shm::kNoGradient;
    return static_cast<uint8_t>(1 + (groups.empty() ? 0 : groups[place]));
  }

  uint64_t used_numel(uint32_t chunk) const;  // up to the end of its last parameter
};
FakeModel make_model(ComputeType type, uint32_t ranks, uint32_t n_chunks, uint64_t chunk_numel);
// Two parameters of 3 and 2.5 times 128 * 37 elements, less some, among four short ones, whose
// values do not depend on the chunk length. Long are those that are longer than a chunk.
FakeModel make_long_model(ComputeType type, uint32_t ranks, uint64_t chunk_numel);

// Deterministic values: the same seed, the same numbers.
std::vector<float> random_values(uint64_t seed, uint64_t numel, float scale);
// One rank's gradient of a whole chunk, step and round, of the model's type. With the collective
// exchange the ranks' sum, whichever the rank.
std::vector<std::byte> fake_gradient(const FakeModel& model, uint32_t rank, uint32_t chunk,
                                     uint32_t step, uint32_t round = 1);
std::vector<std::vector<float>> initial_values(const FakeModel& model);
shm::StepRecord make_record(uint32_t step, uint32_t ranks);

// What elixird should arrive at: whole chunks, updated by the scalar kernel.
class Reference {
 public:
  explicit Reference(const FakeModel& model);
  // With `rounds` above 1, gradients are summed over them in FP32. The verdict is that of the whole
  // gradient and of `more` squares.
  optim::Verdict step(const shm::StepRecord& record, uint32_t rounds = 1, NormSum more = {});
  uint64_t applied() const { return applied_; }
  const NormSum& squares() const { return squares_; }  // of the last step, with `more`
  const std::vector<std::byte>& param(uint32_t chunk) const { return chunks_[chunk].param; }
  std::vector<float> masters_of(uint32_t place) const;
  const std::vector<float>& exp_avg(uint32_t chunk) const { return chunks_[chunk].exp_avg; }
  const std::vector<float>& exp_avg_sq(uint32_t chunk) const { return chunks_[chunk].exp_avg_sq; }
  std::vector<float> masters(uint32_t chunk) const;

 private:
  struct Chunk {
    std::vector<std::byte> param, master;
    std::vector<float> exp_avg, exp_avg_sq;
  };
  std::vector<float> sum(uint32_t chunk, uint32_t step, uint32_t rounds) const;
  FakeModel model_;
  std::vector<Chunk> chunks_;
  uint64_t applied_ = 0;
  NormSum squares_ = {};
  std::vector<uint64_t> updates_;  // by place
};

// All ranks of a job, driven from one thread, in step.
class FakeJob {
 public:
  struct Options {
    shm::RuntimeFolder folder = {};
    std::string name = "job";
    FakeModel model = make_model(ComputeType::kFp32, 2, 3, 1024);
    uint32_t workers = 0;
    uint32_t accumulate = 1;
    uint32_t immediate = 0;
    uint32_t norms = 0;
    uint32_t early = 0;  // the shape has the spare slots
    uint32_t pins_params = 0;
    bool keeps_sums = false;   // FakeTrainer::sums_fd()
    uint32_t first_rank = 0;   // with the collective exchange: of this node
    uint32_t local_ranks = 0;  // of this node; 0: all
  };
  // Without ranks: those of a job in this process are added.
  explicit FakeJob(const Options& options) : options_(options) {}
  FakeJob(const FakeJob&) = delete;  // its trainers ask its model
  // Attached and said hello, not loaded.
  static Result<std::unique_ptr<FakeJob>> attach(const Options& options);
  // Attached and loaded.
  static Result<std::unique_ptr<FakeJob>> start(const Options& options);

  // Who may load does so; then all ranks are ready.
  Status load();
  Status load_values();
  // A rank's gradients of a chunk, or of all, without doorbells.
  void write_chunk(uint32_t rank, uint32_t chunk, uint32_t step, uint32_t round = 1);
  void write_grads(uint32_t rank, uint32_t step, uint32_t round = 1);
  // With doorbells.
  void publish_chunk(uint32_t rank, uint32_t chunk, uint32_t step, uint32_t round = 1);
  // All ranks' gradients of a round, with doorbells, from the last chunk to the first.
  void publish(uint32_t step, uint32_t round = 1);
  Status wait_taken();
  void open(const shm::StepRecord& record);
  void post(const shm::StepRecord& record);  // by all ranks, no gradients
  Status wait_finished(uint32_t step);
  void post(uint32_t step);  // gradients and verdict of every rank
  // Every rank's updates of swing chunks after a post.
  Status swing(uint32_t step);
  Status step(uint32_t step);  // post, swing and wait
  // Parameter, master and moments: every element of this node's shards up to each parameter's end
  // equals the reference's, bit for bit.
  Status compare(const Reference& reference) const;
  void detach();

  FakeTrainer& rank(uint32_t rank) { return *ranks_[rank]; }
  const FakeModel& model() const { return options_.model; }
  const Options& options() const { return options_; }
  uint32_t local_ranks() const {
    return options_.local_ranks != 0 ? options_.local_ranks : options_.model.shape.ranks;
  }
  // The elements of a chunk whose states this node has.
  uint64_t first_element() const { return options_.model.shape.shard_begin(options_.first_rank); }
  uint64_t end_element() const {
    return options_.model.shape.shard_end(options_.first_rank + local_ranks() - 1);
  }
  std::vector<std::unique_ptr<FakeTrainer>>& ranks() { return ranks_; }
  FakeTrainer::Options options_of(uint32_t local_rank) const;

 private:
  template <typename T>
  std::vector<T> in_slot(uint32_t local_rank, const std::vector<T>& chunk, uint64_t unit) const;

  const Options options_;
  std::vector<std::unique_ptr<FakeTrainer>> ranks_;
};

}  // namespace elixir::testing
