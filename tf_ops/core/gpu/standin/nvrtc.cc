// Stands for NVRTC in tests: a program that it "compiles" is the list of its options, which the
// stand-in for libcuda reads.
#include <cstddef>
#include <cstring>
#include <string>

namespace {

struct Program {
  std::string image;
};

int Copy(void* program, char* to) {
  const std::string& image = static_cast<Program*>(program)->image;
  std::memcpy(to, image.c_str(), image.size() + 1);
  return 0;
}

int Size(void* program, size_t* bytes) {
  *bytes = static_cast<Program*>(program)->image.size() + 1;
  return 0;
}

}  // namespace

extern "C" {

const char* nvrtcGetErrorString(int /*result*/) { return "the stand-in for NVRTC says so"; }
int nvrtcVersion(int* major, int* minor) {
  *major = 12;
  *minor = 0;
  return 0;
}
int nvrtcGetNumSupportedArchs(int* count) {
  *count = 1;
  return 0;
}
int nvrtcGetSupportedArchs(int* architectures) {
  *architectures = 90;
  return 0;
}
int nvrtcCreateProgram(void** program, const char* /*source*/, const char* /*name*/, int /*count*/,
                       const char* const* /*headers*/, const char* const* /*names*/) {
  *program = new Program();
  return 0;
}
int nvrtcDestroyProgram(void** program) {
  delete static_cast<Program*>(*program);
  return 0;
}
int nvrtcCompileProgram(void* program, int count, const char* const* options) {
  std::string& image = static_cast<Program*>(program)->image;
  image = "stand-in\n";
  for (int i = 0; i < count; ++i) image += options[i] + std::string("\n");
  return 0;
}
int nvrtcGetCUBINSize(void* program, size_t* bytes) { return Size(program, bytes); }
int nvrtcGetCUBIN(void* program, char* image) { return Copy(program, image); }
int nvrtcGetPTXSize(void* program, size_t* bytes) { return Size(program, bytes); }
int nvrtcGetPTX(void* program, char* image) { return Copy(program, image); }
int nvrtcGetProgramLogSize(void* /*program*/, size_t* bytes) {
  *bytes = 1;
  return 0;
}
int nvrtcGetProgramLog(void* /*program*/, char* log) {
  *log = '\0';
  return 0;
}

}  // extern "C"
