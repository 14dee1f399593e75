// elixir-train under the name that it had when GPT-2 was all it trained.

#include "base/inherited.h"
#include "base/run_main.h"
#include "models/train.h"

int main(int argc, char** argv) {
  elixir::settle_inherited();
  constexpr const char* kProgram = "train_gpt2";
  return elixir::run_main(kProgram, [&] { return elixir::train_main(kProgram, argc, argv); });
}
