#include "core/base/descriptor.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <utility>

namespace sok {
namespace {

// The two ends of a pipe. The reading end is ready once nobody has the writing end open.
struct Pipe {
  Pipe() {
    int ends[2] = {-1, -1};
    REQUIRE(pipe(ends) == 0);
    from = ends[0];
    to = Descriptor(ends[1]);
  }
  ~Pipe() { close(from); }

  int from;
  Descriptor to;
};

TEST_CASE("a forked child keeps no descriptor open, and none that was closed or moved away") {
  Pipe pipe;
  Descriptor closed(dup(pipe.to.get()));
  const int number = closed.get();
  closed.Close();
  Descriptor moved(std::move(pipe.to));
  Pipe other;
  other.to = Descriptor();  // its reading end is not a Descriptor, and stays open
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const bool is_free = !moved.valid() && !pipe.to.valid() && dup(0) <= number;
    moved.Close();  // does not close what has the number now
    if (!is_free) _exit(1);
    pause();
    _exit(2);
  }
  moved.Close();
  char byte;
  CHECK(read(pipe.from, &byte, 1) == 0);  // the end of the pipe: the child does not have it
  kill(child, SIGKILL);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
}

TEST_CASE("a descriptor that is replaced is closed, and the parent keeps its own after a fork") {
  Pipe first, second;
  first.to = std::move(second.to);
  char byte;
  CHECK(read(first.from, &byte, 1) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) _exit(first.to.valid() ? 1 : 0);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(write(first.to.get(), "x", 1) == 1);
  CHECK(read(second.from, &byte, 1) == 1);
}

}  // namespace
}  // namespace sok
