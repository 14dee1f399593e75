// elixir-train under the name that it had when GPT-2 was all it trained.

#include "base/inherited.h"
#include "models/train.h"

int main(int argc, char** argv) {
  elixir::settle_inherited();
  return elixir::train_main("train_gpt2", argc, argv);
}
