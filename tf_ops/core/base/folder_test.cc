#include "core/base/folder.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "core/base/test_folder.h"

namespace sok {
namespace {

TEST_CASE("a folder that cannot be listed is an error, and one that is missing is empty") {
  const TestFolder folder;
  const std::string loop = folder / "loop";
  REQUIRE(symlink("loop", loop.c_str()) == 0);
  CHECK(FilesIn(folder / "missing").value().empty());
  CHECK(FilesIn(folder / "").value() == std::vector<std::string>{"loop"});
  const auto names = FilesIn(loop);
  REQUIRE(!names.ok());
  CHECK(names.status().code() == Code::kInvalidArgument);
  CHECK(names.status().message().find("list the folder " + loop) != std::string::npos);
}

}  // namespace
}  // namespace sok
