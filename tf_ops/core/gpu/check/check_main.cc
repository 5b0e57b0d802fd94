// Runs random programs on the first GPU. Usage: sok_gpu_check [operations of each] [programs]
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "core/gpu/check/random_bags.h"
#include "core/gpu/check/random_program.h"
#include "core/rules/row_optimizer.h"

int main(int argc, char** argv) {
  using namespace sok;
  const int operations = argc > 1 ? std::atoi(argv[1]) : 100;
  const int most_programs = argc > 2 ? std::atoi(argv[2]) : 1000;
  const auto device = gpu::Device::Open(0);
  if (!device.ok()) {
    std::fprintf(stderr, "%s\n", device.status().message().c_str());
    return 1;
  }
  std::printf("%s, compute capability %d.%d, %d multiprocessors\n", device.value()->name().c_str(),
              device.value()->architecture() / 10, device.value()->architecture() % 10,
              device.value()->multiprocessors());
  int failed = 0, programs = 0;
  const auto run = [&](const gpu::ProgramOptions& options) {
    if (programs == most_programs) return;
    const auto begin = std::chrono::steady_clock::now();
    const Status status = gpu::RunRandomProgram(device.value(), options);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    ++programs;
    failed += !status.ok();
    std::printf("%-26s %-17s dim %-4d seed %llu: %s (%.2f s)\n", options.rule.c_str(),
                options.initializer.c_str(), options.dim,
                static_cast<unsigned long long>(options.seed),
                status.ok() ? "equal" : status.message().c_str(), seconds.count());
    std::fflush(stdout);
  };
  gpu::ProgramOptions options;
  options.operations = operations;
  for (const std::string& rule : RowOptimizerNames()) {
    options.rule = rule;
    run(options);
    ++options.seed;
  }
  options.rule = "adam";
  for (const char* const initializer : {"constant", "normal", "truncated_normal"}) {
    options.initializer = initializer;
    run(options);
    ++options.seed;
  }
  for (const int dim : {1, 3, 8, 64, 128, 1030}) {
    options.dim = dim;
    run(options);
    ++options.seed;
  }
  options.dim = 32;
  options.most_keys = 200000;
  options.universe = 1000000;
  run(options);
  for (const char* const initializer : {"uniform", "normal"}) {
    const auto difference = gpu::CompareStarts(device.value(), initializer);
    if (!difference.ok()) {
      std::printf("%s\n", difference.status().message().c_str());
      ++failed;
      continue;
    }
    std::printf("start vectors, %s: %llu of %llu elements differ, by at most %g\n", initializer,
                static_cast<unsigned long long>(difference.value().different),
                static_cast<unsigned long long>(difference.value().elements),
                difference.value().most);
  }
  // A long check runs four times as many batches as a program has operations, and a short check
  // four times as many batches as there are programs.
  const int batches = most_programs < 1000 ? most_programs * 4 : operations * 4;
  int wrong = 0;
  for (int seed = 1; seed <= batches; ++seed) {
    const Status status = gpu::RunRandomBags(device.value(), seed, seed % 40 == 0 ? 20000 : 300);
    if (status.ok()) continue;
    ++wrong;
    std::printf("hashed bags of seed %d: %s\n", seed, status.message().c_str());
  }
  std::printf("%d batches of hashed bags, %d failed\n", batches, wrong);
  failed += wrong;
  std::printf("%d programs of %d operations, %d failed\n", programs, operations, failed);
  return failed == 0 ? 0 : 1;
}
