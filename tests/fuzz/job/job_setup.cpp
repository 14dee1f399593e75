#include "tests/fuzz/job/job_setup.h"

#include <array>
#include <map>

#include "optim_cpu/gradients.h"

namespace elixir::fuzz {
namespace {

using testing::FakeModel;
using testing::Reference;

struct ShapeChoice {
  ComputeType type;
  shm::Exchange exchange;
  uint32_t ranks, first_rank, chunks, frozen;
};
constexpr auto kHost = shm::Exchange::kHost;
constexpr auto kCollective = shm::Exchange::kCollective;
constexpr ShapeChoice kShapes[] = {
    {ComputeType::kFp32, kHost, 1, 0, 2, 0},       {ComputeType::kFp32, kHost, 2, 0, 2, 0},
    {ComputeType::kBf16, kHost, 2, 0, 1, 1},       {ComputeType::kFp16, kHost, 3, 0, 2, 0},
    {ComputeType::kFp32, kHost, 4, 0, 2, 0},       {ComputeType::kFp32, kCollective, 2, 0, 2, 0},
    {ComputeType::kBf16, kCollective, 3, 1, 2, 1}, {ComputeType::kFp32, kHost, 2, 0, 3, 1},
};
constexpr uint64_t kChunkNumel = 256;

uint32_t local_ranks(const ShapeChoice& choice) { return choice.ranks - choice.first_rank; }

// With the collective exchange trainers have summed up before: as if there were one rank.
FakeModel summed_model(const JobSetup& setup) {
  FakeModel model = setup.model;
  std::erase_if(model.places, [&](const auto& place) { return model.shape.frozen(place.chunk); });
  if (setup.collective()) model.shape.ranks = 1;
  model.shape.exchange = kHost;
  return model;
}

// The first parameter takes most of the first two chunks, which hold no other one.
void make_first_long(FakeModel& model) {
  std::erase_if(model.places, [](const auto& place) { return place.chunk < 2; });
  model.places.insert(model.places.begin(), {"long", 0, 0, 2 * kChunkNumel - 100});
  model.shape.n_parameters = static_cast<uint32_t>(model.places.size());
}

// Everything that the numbers depend on.
std::string key_of(const JobSetup& setup) {
  const shm::Shape& shape = setup.model.shape;
  const bool unused = static_cast<bool>(setup.model.unused);
  return fmt::format("{} {} {} {} {} {} {} {} {} {} {}", static_cast<int>(shape.type),
                     setup.collective(), shape.ranks, shape.n_chunks, setup.rounds, setup.clip_norm,
                     setup.check_finite, setup.model.poison_step, setup.counts, unused,
                     setup.model.places[0].name);
}

shm::StepRecord make_record(const JobSetup& setup, uint32_t step);

std::vector<Reference> make_reference(const JobSetup& setup) {
  std::vector<Reference> steps = {Reference(summed_model(setup))};
  for (uint32_t step = 1; step <= setup.steps; ++step) {
    Reference next = steps.back();
    shm::StepRecord record = setup.record(step);
    record.norm = {};  // the reference takes all squares itself
    next.step(record, setup.rounds);
    steps.push_back(std::move(next));
  }
  return steps;
}

// REQUIRES: one round, in which the gradients are what they are squared as.
NormSum squares_of(const JobSetup& setup, uint32_t step) {
  const FakeModel model = summed_model(setup);
  NormSum squares = {};
  for (uint32_t chunk = 0; chunk < model.shape.n_chunks; ++chunk) {
    const std::vector<std::byte> grads = testing::fake_gradient(model, 0, chunk, step);
    const void* const pointer = grads.data();
    const optim::GradientSpan span{
        .type = model.shape.type, .grads = &pointer, .numel = model.used_numel(chunk)};
    optim::take_gradients(optim::Isa::kScalar, span, &squares);
  }
  return squares;
}

shm::StepRecord make_record(const JobSetup& setup, uint32_t step) {
  shm::StepRecord record = testing::make_record(step, setup.model.shape.ranks);
  record.clip_norm = setup.clip_norm;
  record.check_finite = setup.check_finite ? 1 : 0;
  if (setup.counts) {
    record.rule = static_cast<uint32_t>(UpdateRule::kAdamW);
    record.grad_scale = 0;
    record.groups[0] = {.lr = 0.5, .weight_decay = 1, .hyper = {0.9, 0.95, 1e-8}};
  } else if (setup.collective() && (setup.clip_norm > 0 || setup.check_finite)) {
    record.norm = squares_of(setup, step);
  }
  return record;
}

ChunkNumbers numbers_of(const Reference& reference, uint32_t chunk) {
  return {reference.param(chunk), reference.masters(chunk), reference.exp_avg(chunk),
          reference.exp_avg_sq(chunk)};
}

}  // namespace

struct JobNumbers {
  std::map<uint32_t, shm::StepRecord> records;
  std::map<std::array<uint32_t, 4>, std::vector<std::byte>> gradients;
  std::map<uint32_t, std::vector<float>> initial;
  std::map<std::pair<uint32_t, uint32_t>, ChunkNumbers> reference;
};

const shm::StepRecord& JobSetup::record(uint32_t step) const {
  const auto [place, fresh] = numbers->records.try_emplace(step);
  if (fresh) place->second = make_record(*this, step);
  return place->second;
}

const std::vector<std::byte>& JobSetup::gradient(uint32_t local_rank, uint32_t chunk, uint32_t step,
                                                 uint32_t round) const {
  const auto [place, fresh] = numbers->gradients.try_emplace({local_rank, chunk, step, round});
  if (!fresh) return place->second;
  const std::vector<std::byte> whole = testing::fake_gradient(
      summed_model(*this), collective() ? 0 : local_rank, chunk, step, round);
  place->second = whole;
  if (!collective()) return place->second;
  const shm::Shape& shape = model.shape;
  const uint32_t rank = first_rank + local_rank;
  const uint64_t element = element_bytes(shape.type);
  const auto at = [&](uint64_t index) {
    return whole.begin() + static_cast<ptrdiff_t>(index * element);
  };
  place->second.assign(at(shape.shard_begin(rank)), at(shape.shard_end(rank)));
  return place->second;
}

const std::vector<float>& JobSetup::initial(uint32_t chunk) const {
  const auto [place, fresh] = numbers->initial.try_emplace(chunk);
  const uint64_t numel = model.shape.chunk_numel;
  if (fresh && counts) place->second.assign(numel, 1.0f);
  if (fresh && !counts) place->second = testing::random_values(1000003 * (chunk + 1), numel, 0.1f);
  return place->second;
}

// None in half of all setups.
void take_drops(Input& input, JobSetup* setup) {
  const auto bits = input.take<uint8_t>();
  // What has been updated cannot be dropped.
  const uint32_t most = setup->rules.immediate != 0 ? setup->rules.accumulate - 1 : 2;
  for (uint32_t discards = (bits & 3) < 2 ? 0 : (bits & 3) - 1; discards > 0; --discards) {
    const uint32_t passes = std::min<uint32_t>(most, 1 + (bits >> (1 + discards) & 1));
    if (passes > 0) setup->dropped_rounds.push_back(passes);
  }
  if ((bits & 16) != 0) setup->dropped_chunks = 1 + (bits >> 5 & 1);
  setup->dropped_uneven = (bits & 64) != 0 && !setup->collective();
}

JobSetup take_setup(Input& input, bool counts) {
  const ShapeChoice& choice = kShapes[input.below(std::size(kShapes))];
  const auto rules = input.take<uint8_t>(), more = input.take<uint8_t>();
  JobSetup setup;
  setup.counts = counts;
  setup.model = testing::make_model(choice.type, choice.ranks, choice.chunks, kChunkNumel);
  setup.model.shape.exchange = choice.exchange;
  setup.model.shape.n_frozen_chunks = choice.frozen;
  if ((rules & 128) != 0 && choice.chunks > 1) make_first_long(setup.model);
  if (choice.frozen > 0) setup.model.places.push_back({"frozen", choice.chunks, 0, kChunkNumel});
  setup.first_rank = choice.first_rank;
  setup.local_ranks = local_ranks(choice);
  setup.steps = 1 + (more & 3);
  // Words of a ring are used again.
  if (setup.steps == 4 && (rules & 32) != 0) setup.steps = shm::kStepRing + 2;
  // Of the first chunk's first parameter alone, so that others of its slices are updated.
  if ((rules & 64) != 0)
    setup.model.unused = [](uint32_t i, uint32_t s) { return i == 0 && s % 3 == 0; };
  const uint32_t passes = 1 + (rules >> 2 & 3) % 3;
  switch (rules & 3) {
    case 0:  // deferred
      setup.rules.accumulate = setup.rounds = passes;
      break;
    case 1:  // immediate
      setup.rules.accumulate = setup.rounds = passes;
      setup.rules.immediate = 1;
      break;
    case 2:  // with norms
      setup.rules.accumulate = setup.rounds = passes;
      setup.rules.norms = 1;
      break;
    default:  // more backward passes than were declared, or fewer
      setup.rules.accumulate = (rules & 16) != 0 ? 3 : 1;
      setup.rounds = 2;
  }
  // Their counts cannot be followed: an update may be made again.
  if ((rules & 128) != 0 && !counts && setup.rules.immediate == 0) {
    setup.rules.early = 1;
    setup.model.shape.n_spare_slots = std::min(1 + (more & 1u), setup.model.shape.n_chunks);
  }
  take_drops(input, &setup);
  if (setup.rules.immediate == 0 && !(setup.collective() && setup.rounds > 1)) {
    setup.clip_norm = (more & 4) != 0 ? 0.5 : 0;
    setup.check_finite = (more & 8) != 0;
    const bool skips = setup.clip_norm > 0 || setup.check_finite;
    if (skips && (more & 16) != 0) setup.model.poison_step = 1 + (more >> 5) % setup.steps;
  }
  static std::map<std::string, JobNumbers> known;
  setup.numbers = &known[key_of(setup)];
  return setup;
}

const ChunkNumbers& reference_of(const JobSetup& setup, uint32_t step, uint32_t chunk) {
  auto& known = setup.numbers->reference;
  if (const auto found = known.find({step, chunk}); found != known.end()) return found->second;
  const std::vector<Reference> steps = make_reference(setup);
  for (uint32_t i = 0; i < steps.size(); ++i) {
    for (uint32_t each = 0; each < setup.model.shape.n_chunks; ++each) {
      known[{i, each}] = numbers_of(steps[i], each);
    }
  }
  return known.at({step, chunk});
}

}  // namespace elixir::fuzz
