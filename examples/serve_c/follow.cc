// Prints a row at each version that is published: follow FOLDER FILE KEY LAST
#include <sok_rows.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

void Check(int status) {
  if (status != SOK_ROWS_OK) throw std::runtime_error(sok_rows_error());
}

using Export = std::unique_ptr<sok_rows_export, decltype(&sok_rows_close_export)>;
using Version = std::unique_ptr<sok_rows_version, decltype(&sok_rows_close_version)>;

Export OpenExport(const std::string& folder) {
  sok_rows_export* exported = nullptr;
  Check(sok_rows_open_export(folder.c_str(), &exported));
  return Export(exported, sok_rows_close_export);
}

// All tables of one version stay the same as long as this lives.
Version OpenVersion(const Export& exported) {
  sok_rows_version* version = nullptr;
  Check(sok_rows_open_version(exported.get(), &version));
  return Version(version, sok_rows_close_version);
}

// A thread that serves calls this for each request.
uint64_t Answer(const Export& exported, const std::string& file, uint64_t key,
                std::vector<float>* row) {
  const Version version = OpenVersion(exported);
  const sok_rows* table = nullptr;
  Check(sok_rows_table(version.get(), file.c_str(), &table));
  sok_rows_info info{};
  info.size = sizeof(info);
  Check(sok_rows_get_info(table, &info));
  row->resize(info.dim);
  Check(sok_rows_lookup(table, &key, 1, row->data()));
  sok_rows_version_info of_version{};
  of_version.size = sizeof(of_version);
  Check(sok_rows_get_version_info(version.get(), &of_version));
  return of_version.delta;
}

int Run(char** argv) {
  const Export exported = OpenExport(argv[1]);
  const uint64_t last = std::strtoull(argv[4], nullptr, 10);
  std::atomic<bool> ended{false};
  std::thread follower([&] {
    while (!ended) {
      // An error leaves the version as it is, and the next look tries again.
      if (sok_rows_update(exported.get(), SOK_ROWS_NEWEST) != SOK_ROWS_OK) {
        std::fprintf(stderr, "follow: %s\n", sok_rows_error());
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  });
  int status = 0;
  try {
    const uint64_t key = std::strtoull(argv[3], nullptr, 10);
    std::vector<float> row;
    for (uint64_t shown = UINT64_MAX; shown != last;) {
      const uint64_t delta = Answer(exported, argv[2], key, &row);
      if (delta != shown) {
        std::printf("%llu", static_cast<unsigned long long>(delta));
        for (const float value : row) std::printf(" %.9g", value);
        std::printf("\n");
        std::fflush(stdout);
      }
      shown = delta;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "follow: %s\n", error.what());
    status = 1;
  }
  ended = true;
  follower.join();
  return status;
}

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: follow FOLDER FILE KEY LAST\n");
    return 2;
  }
  try {
    return Run(argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "follow: %s\n", error.what());
    return 1;
  }
}
