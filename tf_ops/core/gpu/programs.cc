#include "core/gpu/programs.h"

#include <cstdlib>
#include <map>
#include <mutex>
#include <tuple>

#include "core/base/file.h"
#include "core/base/folder.h"
#include "core/base/sha256.h"
#include "core/base/status_macros.h"
#include "core/gpu/device_sources.h"

namespace sok::gpu {
namespace {

std::vector<std::string> OptionsOf(const Specialty& specialty) {
  std::vector<std::string> options;
  if (specialty.dim != 0) options.push_back("-DSOK_DIM=" + std::to_string(specialty.dim));
  if (!specialty.fuses) options.push_back("--fmad=false");
  if (!specialty.rule.empty()) options.push_back("-DSOK_RULE=" + specialty.rule);
  return options;
}

std::string Hex(const Sha256Digest& digest) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const uint8_t byte : digest) {
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

// Returns a name that differs if anything differs that the compiled program depends on.
std::string CacheName(const std::string& version, int architecture, const std::string& name,
                      const Specialty& specialty) {
  static const std::string sources = [] {
    std::string all;
    for (const Header& header : DeviceHeaders()) {
      all += header.name + std::string(1, '\0') + header.text + std::string(1, '\0');
    }
    return Hex(Sha256(all));
  }();
  std::string key = sources + " " + version + " " + std::to_string(architecture) + " " + name;
  for (const std::string& option : OptionsOf(specialty)) key += " " + option;
  return name + "-" + Hex(Sha256(key)).substr(0, 32);
}

// A file of the cache begins with the digest of the rest.
constexpr size_t kDigestBytes = 64;

// Returns nothing if the file does not exist or is damaged.
std::string ReadCached(const std::string& path) {
  const auto file = InputFile::Open(path);
  if (!file.ok() || file.value()->bytes() <= kDigestBytes) return "";
  std::string content(file.value()->bytes(), '\0');
  if (!file.value()->ReadAt(0, content.data(), content.size()).ok()) return "";
  std::string image = content.substr(kDigestBytes);
  return Hex(Sha256(image)) == content.substr(0, kDigestBytes) ? image : "";
}

void WriteCached(const std::string& folder, const std::string& path, const std::string& image) {
  if (!MakeFolders(folder).ok()) return;
  auto file = ReplacementFile::Open(path);
  if (!file.ok()) return;
  const std::string content = Hex(Sha256(image)) + image;
  if (file.value()->Write(content.data(), content.size()).ok()) (void)file.value()->Commit();
}

}  // namespace

std::string ProgramCacheFolder() {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != '\0') return std::string(cache) + "/sok-embed/gpu";
  const char* const home = std::getenv("HOME");
  return home == nullptr || *home == '\0' ? "" : std::string(home) + "/.cache/sok-embed/gpu";
}

Result<std::string> CompileProgram(const Compiler& compiler, int architecture,
                                   const std::string& name, const Specialty& specialty) {
  return compiler.Compile(name + ".cu", "#include \"core/gpu/kernels/" + name + ".cu\"\n",
                          DeviceHeaders(), OptionsOf(specialty), architecture);
}

Result<std::string> CachedProgram(const Compiler& compiler, int architecture,
                                  const std::string& name, const Specialty& specialty) {
  const std::string folder = ProgramCacheFolder();
  if (folder.empty()) return CompileProgram(compiler, architecture, name, specialty);
  const std::string path =
      folder + "/" + CacheName(compiler.version(), architecture, name, specialty);
  std::string image = ReadCached(path);
  if (!image.empty()) return image;
  SOK_ASSIGN_OR_RETURN(image, CompileProgram(compiler, architecture, name, specialty));
  WriteCached(folder, path, image);
  return image;
}

Result<std::shared_ptr<Module>> LoadProgram(const std::shared_ptr<Device>& device,
                                            const std::string& name, const Specialty& specialty) {
  using Loaded =
      std::map<std::tuple<int, std::string, int, std::string, bool>, std::shared_ptr<Module>>;
  // They are not unloaded when the process ends, since the driver may have ended before.
  static Loaded& loaded = *new Loaded();
  static std::mutex mu;
  const std::lock_guard<std::mutex> lock(mu);
  std::shared_ptr<Module>& module =
      loaded[{device->ordinal(), name, specialty.dim, specialty.rule, specialty.fuses}];
  if (module != nullptr) return module;
  SOK_ASSIGN_OR_RETURN(const Compiler* const compiler, Compiler::Get());
  SOK_ASSIGN_OR_RETURN(const std::string image,
                       CachedProgram(*compiler, device->architecture(), name, specialty));
  SOK_ASSIGN_OR_RETURN(module, device->Load(image));
  return module;
}

}  // namespace sok::gpu
