// Looks keys up in eight threads while deltas are applied: rows_threads FOLDER LAST KEYS
// KEYS is a file of uint64. Writes the answers of each version that a thread has seen: its number,
// and the rows of all keys in all tables.
#include <sok_rows.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

namespace {

void Check(int status) {
  if (status == SOK_ROWS_OK) return;
  std::fprintf(stderr, "rows_threads: %s\n", sok_rows_error());
  std::abort();
}

struct Answer {
  uint64_t delta = 0;
  std::vector<float> rows;
};

Answer LookUp(const sok_rows_export* exported, const std::vector<uint64_t>& keys) {
  sok_rows_version* version = nullptr;
  Check(sok_rows_open_version(exported, &version));
  sok_rows_version_info info{};
  info.size = sizeof(info);
  Check(sok_rows_get_version_info(version, &info));
  Answer answer;
  answer.delta = info.delta;
  for (size_t i = 0; i < info.tables; ++i) {
    const sok_rows* table = nullptr;
    Check(sok_rows_table_at(version, i, &table));
    sok_rows_info of_table{};
    of_table.size = sizeof(of_table);
    Check(sok_rows_get_info(table, &of_table));
    const size_t begin = answer.rows.size();
    answer.rows.resize(begin + keys.size() * of_table.dim);
    Check(sok_rows_lookup(table, keys.data(), keys.size(), &answer.rows[begin]));
  }
  sok_rows_close_version(version);
  return answer;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  sok_rows_export* exported = nullptr;
  Check(sok_rows_open_export(argv[1], &exported));
  const uint64_t last = std::strtoull(argv[2], nullptr, 10);
  std::vector<uint64_t> keys(300);
  std::FILE* const file = std::fopen(argv[3], "rb");
  if (file == nullptr || std::fread(keys.data(), 8, keys.size(), file) != keys.size()) return 2;
  std::fclose(file);

  std::mutex mu;
  std::multimap<uint64_t, std::vector<float>> all;
  bool changed = false;
  const auto serve = [&] {
    std::map<uint64_t, std::vector<float>> seen;
    bool differs = false;
    while (seen.count(last) == 0) {
      Answer answer = LookUp(exported, keys);
      const auto found = seen.find(answer.delta);
      if (found == seen.end()) {
        seen[answer.delta] = std::move(answer.rows);
      } else {
        differs = differs || found->second != answer.rows;
      }
    }
    const std::lock_guard<std::mutex> guard(mu);
    all.insert(seen.begin(), seen.end());
    changed = changed || differs;
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) threads.emplace_back(serve);
  // Two threads apply the same deltas.
  std::thread other([&] { Check(sok_rows_update(exported, SOK_ROWS_NEWEST)); });
  for (uint64_t delta = 1; delta <= last; ++delta) {
    const int status = sok_rows_update(exported, delta);
    if (status != SOK_ROWS_INVALID_ARGUMENT) Check(status);  // the other thread is ahead
  }
  other.join();
  for (std::thread& thread : threads) thread.join();
  sok_rows_close_export(exported);
  if (changed) return 3;
  for (const auto& each : all) {
    std::fwrite(&each.first, 8, 1, stdout);
    std::fwrite(each.second.data(), sizeof(float), each.second.size(), stdout);
  }
  return std::fflush(stdout) == 0 ? 0 : 1;
}
