// What dynamic_library_test loads.
extern "C" int elixir_test_answer() { return 42; }
