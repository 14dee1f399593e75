#include "base/inherited.h"
#include "base/run_main.h"
#include "models/train.h"

int main(int argc, char** argv) {
  elixir::settle_inherited();
  constexpr const char* kProgram = "elixir-train";
  return elixir::run_main(kProgram, [&] { return elixir::train_main(kProgram, argc, argv); });
}
