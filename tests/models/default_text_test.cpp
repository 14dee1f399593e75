#include "models/default_text.h"

#include "models/token_data.h"
#include "tests/support/matchers.h"
#include "tests/support/temporary_folder.h"

namespace elixir {
namespace {

TEST(DefaultText, FindsTheLibraryOfTheVenvAbove) {
  const TemporaryFolder folder;
  folder.write("python/lib/python3.9/os.py", "pass\n");
  folder.write("python/lib/python3.12/os.py", "pass\n");
  folder.write("python/lib/python3.13/no_library", "");
  const auto configure = [&](const std::string& version) {
    folder.write("tree/.venv/pyvenv.cfg",
                 "home = " + folder.path("python/bin") + "\nversion = " + version + "\n");
    const auto library = find_python_library(folder.path("tree/build/release/bin"));
    return library.ok() ? library->string() : library.status().message();
  };
  EXPECT_EQ(configure("3.9.2"), folder.path("python/lib/python3.9"));
  EXPECT_EQ(configure("3.12.0"), folder.path("python/lib/python3.12"));
  // Its own is not there: the newest (12 is newer than 9) that is a standard library.
  EXPECT_EQ(configure("3.10.1"), folder.path("python/lib/python3.12"));
}

TEST(DefaultText, ListsSourcesInOneOrder) {
  const TemporaryFolder folder;
  for (const char* name : {"os.py", "abc.py", "email/parser.py", "asyncio/locks.py",
                           "test/test_os.py", "email/tests/more.py", "site-packages/x/y.py"}) {
    folder.write(name, "pass\n");
  }
  folder.write("email/__init__.py", "");
  folder.write("email/notes.txt", "text");
  const auto sources = must(python_sources(folder.path("")));
  std::vector<std::string> names;
  for (const std::string& path : sources) {
    names.push_back(std::filesystem::relative(path, folder.path("")));
  }
  EXPECT_THAT(names, ElementsAre("abc.py", "os.py", "asyncio/locks.py", "email/parser.py"));
}

TEST(DefaultText, StopsAtItsLimit) {
  const TemporaryFolder folder;
  const std::string third(kDefaultTextBytes / 3, 'x');
  for (const char* name : {"a.py", "b.py", "c.py", "d.py"}) folder.write(name, third);
  const auto sources = must(python_sources(folder.path("")));
  EXPECT_EQ(sources.size(), 3u);
}

TEST(DefaultText, SaysWhatToDoWithoutSources) {
  const TemporaryFolder folder;
  expect_refused(python_sources(folder.path("")).status(), Code::kBadInput, {"--data", "setup.sh"});
}

// What every machine that built Elixir has.
TEST(DefaultText, IsThereAndIsText) {
  const auto files = must(default_text());
  const auto data = must(TokenData::open({.files = files}));
  EXPECT_GT(data.tokens(), 1'000'000);
}

}  // namespace
}  // namespace elixir
