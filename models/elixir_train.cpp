#include "base/inherited.h"
#include "models/train.h"

int main(int argc, char** argv) {
  elixir::settle_inherited();
  return elixir::train_main("elixir-train", argc, argv);
}
