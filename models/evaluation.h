#pragma once

#include "models/decoder.h"

namespace elixir {

// The model is in evaluation mode, without dropout, while this lives. Afterwards its old mode
// returns.
class Evaluation {
 public:
  explicit Evaluation(Decoder& model) : model_(model), trained_(model.is_training()) {
    model_.eval();
  }
  ~Evaluation() { model_.train(trained_); }
  Evaluation(const Evaluation&) = delete;
  Evaluation& operator=(const Evaluation&) = delete;

 private:
  Decoder& model_;
  const bool trained_;
};

}  // namespace elixir
