#include "client/tensors/second_run.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <string_view>

#include "base/check.h"
#include "base/log.h"
#include "base/throw_error.h"
#include "client/tensors/operator_call.h"

namespace elixir {
namespace {

// Blocks of so many sorts may have inputs of one shape; experts make a new one each time.
constexpr size_t kMostTails = 4;

class WithoutChunkKey {
 public:
  WithoutChunkKey() : before_(c10::impl::tls_is_dispatch_key_included(kChunkKey)) {
    c10::impl::tls_set_dispatch_key_included(kChunkKey, false);
  }
  ~WithoutChunkKey() { c10::impl::tls_set_dispatch_key_included(kChunkKey, before_); }
  WithoutChunkKey(const WithoutChunkKey&) = delete;
  WithoutChunkKey& operator=(const WithoutChunkKey&) = delete;

 private:
  const bool before_;
};

}  // namespace

SecondRun::SecondRun(KnownRegions* regions, uint64_t kind, StoredProducts* products,
                     OperatorObserver* beside)
    : regions_(*regions),
      kind_(kind),
      products_(*products),
      beside_(beside),
      known_(regions->find(kind)),
      calls_(CallHash().value()) {
  ELIXIR_CHECK(known_->tails.size() <= kMostTails, "{} sorts of regions are of one kind",
               known_->tails.size());
  products->begin_taking();
}

void SecondRun::pass_on(const c10::OperatorHandle& op, c10::DispatchKeySet below,
                        std::vector<c10::IValue>* stack) {
  const Deeper inside(&depth_);
  if (beside_ != nullptr) return beside_->run(op, below, stack);
  // Operators inside of this one are intercepted if they read a parameter, as everywhere.
  const WithoutChunkKey quick;
  op.redispatchBoxed(below, stack);
}

void SecondRun::run(const c10::OperatorHandle& op, c10::DispatchKeySet below,
                    std::vector<c10::IValue>* stack) {
  if (depth_ > 0) return pass_on(op, below, stack);
  if (known_->run_whole) return take_or_run(op, below, stack);
  const std::optional<uint64_t> call = hash_of_call(
      op, arguments_of(op, *stack), op.schema().arguments().size(), CallQuestion::kShapes);
  if (tail_ != nullptr) {
    const bool may = !departed_ && left_out_ < tail_->operators.size() &&
                     may_leave_out(tail_->operators[left_out_], op, *stack, call, placeholders_);
    if (may) {
      if (beside_ != nullptr) beside_->left_out();
      return leave_out(tail_->operators[left_out_++], op, stack, &placeholders_);
    }
    if (left_out_ > 0) {
      departed_ = true;
      throw Error(error(Code::kInvalidArgument,
                        "{} is called in the second run of a function of elixir::checkpoint(), and "
                        "in earlier ones {} operators before it were the last: the function must "
                        "let this error pass, and runs again",
                        op.schema().name(), left_out_));
    }
    tail_ = nullptr;  // a longer region that begins like this one
  }
  std::optional<ObservedCall> seen;
  if (known_->observe) seen.emplace(op, *stack, call);
  take_or_run(op, below, stack);
  calls_ = CallHash(CallQuestion::kShapes, calls_).add(call.value_or(0)).value();
  if (seen) {
    seen->with_results(op, *stack);
    observed_.push_back({std::move(*seen), calls_});
  }
  for (const RegionTail& tail : known_->tails) {
    if (tail.begins_after == calls_) tail_ = &tail;
  }
}

void SecondRun::take_or_run(const c10::OperatorHandle& op, c10::DispatchKeySet below,
                            std::vector<c10::IValue>* stack) {
  if (!products_.any() || !is_product(op)) return pass_on(op, below, stack);
  const size_t n = op.schema().arguments().size();
  std::optional<c10::SmallVector<c10::IValue, 2>> results =
      products_.take(hash_of_call(op, arguments_of(op, *stack), n, CallQuestion::kValues));
  if (!results) return pass_on(op, below, stack);
  if (beside_ != nullptr) beside_->left_out();
  torch::jit::drop(*stack, n);
  for (c10::IValue& result : *results) stack->push_back(std::move(result));
}

// Results that the graph or anybody else keeps are needed, and so are the operators before them.
// Memory that an operator writes must be made behind these, too: code may read it by a pointer.
size_t SecondRun::first_unneeded() const {
  size_t first = observed_.size();
  while (first > 0 && !observed_[first - 1].call.needed()) --first;
  std::vector<const c10::StorageImpl*> made;
  for (size_t i = first; i < observed_.size(); ++i) {
    for (const c10::StorageImpl* changed : observed_[i].call.changed()) {
      if (std::find(made.begin(), made.end(), changed) != made.end()) continue;
      first = i + 1;
      made.clear();
    }
    if (first <= i) {
      const auto& own = observed_[i].call.made();
      made.insert(made.end(), own.begin(), own.end());
    }
  }
  return first;
}

void SecondRun::learn() {
  const size_t needed = first_unneeded();
  // Behind nothing, a tail would be taken for every region's beginning.
  RegionTail tail{.begins_after = needed > 0 ? observed_[needed - 1].calls : calls_};
  for (size_t i = 0; i < needed; ++i) tail.products_before += observed_[i].call.product();
  for (size_t i = needed; i < observed_.size() && needed > 0; ++i) {
    tail.operators.push_back(std::move(observed_[i].call.op));
  }
  KnownRegion now = *known_;
  // One that was given up: an end was learned, and something that is no operator read it.
  const bool given_up = std::any_of(now.tails.begin(), now.tails.end(), [&](const RegionTail& had) {
    return had.begins_after == tail.begins_after;
  });
  if (given_up) tail = {.begins_after = calls_, .products_before = tail.products_before};
  will_be_left_out_ = static_cast<uint32_t>(tail.operators.size());
  if (now.tails.size() < kMostTails) now.tails.push_back(std::move(tail));
  now.observe = false;
  regions_.set(kind_, std::move(now));
}

bool SecondRun::ended_as_observed() const {
  return !departed_ && left_out_ == tail_->operators.size() && !any_alive(placeholders_);
}

bool SecondRun::ends() {
  if (known_->run_whole) return true;
  if (tail_ != nullptr && (left_out_ > 0 || tail_->operators.empty())) {
    const bool right = ended_as_observed();
    if (!right) give_up();
    return right;
  }
  if (known_->observe) {
    learn();
    return true;
  }
  KnownRegion now = *known_;
  now.observe = true;
  now.run_whole = now.tails.size() >= kMostTails;
  if (now.run_whole) {
    log_info("region_varies",
             "sorts={} why=\"functions of elixir::checkpoint() with inputs of one shape differ\" "
             "effect=\"they are computed as a whole in backward\"",
             kMostTails);
  }
  regions_.set(kind_, std::move(now));
  return true;
}

bool SecondRun::fails(const std::exception& failure) {
  const bool by_leaving_out =
      departed_ || std::string_view(failure.what()).find(kNoMemory) != std::string_view::npos;
  if (left_out_ > 0 && by_leaving_out) give_up();
  return left_out_ > 0 && by_leaving_out;
}

void SecondRun::give_up() {
  ELIXIR_CHECK(tail_ != nullptr, "a run without a known end left out {} operators", left_out_);
  KnownRegion now = *known_;
  now.tails[static_cast<size_t>(tail_ - known_->tails.data())].operators.clear();
  now.observe = true;
  regions_.set(kind_, std::move(now));
  log_info("region_differs",
           "left_out={} why=\"the second run of a function of elixir::checkpoint() differs from an "
           "earlier one with inputs of these shapes\" effect=\"regions that begin like it are "
           "computed as a whole in backward\"",
           left_out_);
}

}  // namespace elixir
