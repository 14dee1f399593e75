#include "models/train.h"

int main(int argc, char** argv) { return elixir::train_main("elixir-train", argc, argv); }
