#include "core/policies/chunked_admission.h"

#include "core/base/hash.h"
#include "core/base/status_macros.h"
#include "core/policies/chunk_format.h"

namespace sok {
namespace {

uint64_t Fingerprint(const std::string& kind, std::initializer_list<uint64_t> settings) {
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ull;
  uint64_t fingerprint = 0;
  const auto mix = [&](uint64_t value) { fingerprint = Mix64((fingerprint ^ value) + kGolden); };
  for (char letter : kind) mix(static_cast<uint8_t>(letter));
  for (uint64_t setting : settings) mix(setting);
  return fingerprint;
}

}  // namespace

ChunkedAdmission::ChunkedAdmission(const AdmissionConfig& config,
                                   std::initializer_list<uint64_t> settings, uint32_t chunks)
    : config_(config), fingerprint_(Fingerprint(config.kind, settings)), chunks_(chunks) {}

Status ChunkedAdmission::CheckNumber(uint32_t chunk) const {
  if (chunk < chunks()) return Status();
  return InvalidArgument("Expected a chunk of the admission filter in [0, " +
                         std::to_string(chunks()) + "). Received: " + std::to_string(chunk) + ".");
}

std::vector<uint32_t> ChunkedAdmission::ChangedChunks() {
  std::vector<uint32_t> changed;
  for (uint32_t i = 0; i < chunks(); ++i) {
    Chunk& chunk = chunks_[i];
    std::lock_guard<std::mutex> lock(chunk.mu);
    chunk.in_save |= chunk.changed;
    chunk.changed = false;
    if (chunk.in_save) changed.push_back(i);
  }
  return changed;
}

Result<std::string> ChunkedAdmission::Dump(uint32_t chunk) const {
  SOK_RETURN_IF_ERROR(CheckNumber(chunk));
  std::unique_lock<std::mutex> lock(mutex(chunk));
  const std::string payload = Payload(chunk);
  lock.unlock();
  return EncodeChunk({fingerprint_, chunk}, payload);
}

void ChunkedAdmission::MarkSaved() {
  for (Chunk& chunk : chunks_) {
    std::lock_guard<std::mutex> lock(chunk.mu);
    chunk.in_save = false;
  }
}

Result<std::string_view> ChunkedAdmission::PayloadOf(uint32_t chunk, std::string_view bytes) const {
  SOK_RETURN_IF_ERROR(CheckNumber(chunk));
  return DecodeChunk({fingerprint_, chunk}, bytes);
}

Status ChunkedAdmission::Load(uint32_t chunk, std::string_view bytes) {
  SOK_ASSIGN_OR_RETURN(const auto payload, PayloadOf(chunk, bytes));
  std::lock_guard<std::mutex> lock(mutex(chunk));
  SOK_RETURN_IF_ERROR(LoadPayload(chunk, payload));
  chunks_[chunk].changed = chunks_[chunk].in_save = false;
  chunks_[chunk].used = true;
  return Status();
}

std::vector<uint32_t> ChunkedAdmission::UsedChunks() const {
  std::vector<uint32_t> used;
  for (uint32_t i = 0; i < chunks(); ++i) {
    std::lock_guard<std::mutex> lock(mutex(i));
    if (chunks_[i].used) used.push_back(i);
  }
  return used;
}

Status ChunkedAdmission::CheckChunks(const AdmissionChunks& chunks) const {
  for (const auto& [chunk, bytes] : chunks) {
    SOK_ASSIGN_OR_RETURN(const auto payload, PayloadOf(chunk, bytes));
    SOK_RETURN_IF_ERROR(CheckPayload(chunk, payload));
  }
  return Status();
}

Status ChunkedAdmission::Restore(const AdmissionChunks& chunks) {
  SOK_RETURN_IF_ERROR(CheckChunks(chunks));
  for (uint32_t i = 0; i < this->chunks(); ++i) {
    const auto given = chunks.find(i);
    std::lock_guard<std::mutex> lock(mutex(i));
    if (given == chunks.end()) {
      if (!chunks_[i].used) continue;
      ClearChunk(i);
    } else {
      const auto payload = PayloadOf(i, given->second);
      SOK_RETURN_IF_ERROR(payload.ok() ? LoadPayload(i, payload.value()) : payload.status());
    }
    MarkChanged(i);
  }
  return Status();
}

}  // namespace sok
