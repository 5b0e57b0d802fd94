// Serves an exported model from a program in C, over TensorFlow's C API.
//
//   serve LIBRARY MODEL < request > answer
//
// LIBRARY: the ops that an export with ops="native" needs, or "" for one with ops="stock".
// MODEL: the folder of a version, such as served/1.
//
// A request is a text with a line for each tensor. A line for an input has its name, its shape and
// its values, with a tab between each two; a line for an output has its name alone. Names are those
// of tensors, which `saved_model_cli show --all` prints. A ragged input has two tensors: the values
// of all its rows, and the lengths of the rows. This asks for the answer of two examples:
//
//   serve_ids:0 <tab> 2,1 <tab> 42 <tab> -7
//   serve_words_values:0 <tab> 3 <tab> red <tab> light blue <tab> green
//   serve_words_row_lengths:0 <tab> 2 <tab> 2 <tab> 1
//   StatefulPartitionedCall_1:0
//
// Inputs are int32, int64, uint64, float32 or strings without tabs and ends of lines, as the model
// says. The answer has a line for each output in the same form, with its shape and its values:
// float32 in 9 digits, which are enough for all of its bits.
//
// Compile it against the TensorFlow of Python, whose folder `tf.sysconfig.get_lib()` returns:
//
//   cc -std=c99 -I$FOLDER/include serve.c $FOLDER/libtensorflow_cc.so.2
//       $FOLDER/libtensorflow_framework.so.2 -Wl,-rpath,$FOLDER -o serve
#include <errno.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tensorflow/c/c_api.h>
#include <tensorflow/c/tf_tstring.h>

enum { kMostTensors = 256, kMostDims = 8 };

static void Fail(const char* what, const char* which) {
  fprintf(stderr, "serve: %s: %s\n", what, which);
  exit(1);
}

static void Check(TF_Status* status, const char* what) {
  if (TF_GetCode(status) != TF_OK) Fail(what, TF_Message(status));
}

// Returns the tensor of a name such as "serve_ids:0".
static TF_Output Named(TF_Graph* graph, const char* name) {
  char operation[1024];
  const char* const colon = strchr(name, ':');
  const size_t size = colon == NULL ? strlen(name) : (size_t)(colon - name);
  if (size >= sizeof(operation)) Fail("the name of a tensor is too long", name);
  memcpy(operation, name, size);
  operation[size] = '\0';
  const TF_Output output = {TF_GraphOperationByName(graph, operation),
                            colon == NULL ? 0 : atoi(colon + 1)};
  if (output.oper == NULL || output.index < 0 ||
      output.index >= TF_OperationNumOutputs(output.oper)) {
    Fail("the model has no tensor", name);
  }
  return output;
}

// Reads stdin to its end, and ends it with a zero.
static char* ReadAll(void) {
  size_t room = 1 << 16, held = 0;
  char* text = malloc(room + 1);
  for (;;) {
    if (text == NULL) Fail("no memory", "for the request");
    const size_t got = fread(text + held, 1, room - held, stdin);
    held += got;
    if (got == 0) break;
    if (held == room) text = realloc(text, (room *= 2) + 1);
  }
  text[held] = '\0';
  if (strlen(text) != held) Fail("expected a text", "received one with a byte that is 0");
  return text;
}

// Cuts the text before the next mark off, and moves on behind it. Returns null at the end.
static char* Cut(char** text, char mark) {
  char* const begin = *text;
  if (begin == NULL) return NULL;
  char* const end = strchr(begin, mark);
  if (end != NULL) *end = '\0';
  *text = end == NULL ? NULL : end + 1;
  return begin;
}

// Reads one value into its place in a tensor.
static void SetValue(TF_DataType type, const char* text, void* data, int64_t place,
                     const char* name) {
  char* end = NULL;
  errno = 0;
  switch (type) {
    case TF_STRING: {
      TF_TString* const string = (TF_TString*)data + place;
      TF_StringInit(string);
      TF_StringCopy(string, text, strlen(text));
      return;
    }
    case TF_INT64:
      ((int64_t*)data)[place] = strtoll(text, &end, 10);
      break;
    case TF_UINT64:
      ((uint64_t*)data)[place] = strtoull(text, &end, 10);
      if (text[0] == '-') end = NULL;
      break;
    case TF_INT32: {
      const long long number = strtoll(text, &end, 10);
      ((int32_t*)data)[place] = (int32_t)number;
      if (number < INT32_MIN || number > INT32_MAX) errno = ERANGE;
      break;
    }
    case TF_FLOAT:
      ((float*)data)[place] = strtof(text, &end);
      if (errno == ERANGE && ((float*)data)[place] < 1 && ((float*)data)[place] > -1) errno = 0;
      break;
    default:
      Fail("expected an input of int32, int64, uint64, float32 or strings", name);
  }
  if (end == NULL || end == text || *end != '\0' || errno == ERANGE) {
    fprintf(stderr, "serve: the input %s does not take the value '%s'\n", name, text);
    exit(1);
  }
}

// Makes a tensor of the rest of a line: its shape and its values.
static TF_Tensor* ReadTensor(TF_DataType type, const char* name, char* line) {
  char* shape = Cut(&line, '\t');
  int64_t dims[kMostDims], count = 1;
  int rank = 0;
  if (*shape == '\0') shape = NULL;  // a scalar
  for (char* dim; (dim = Cut(&shape, ',')) != NULL; ++rank) {
    char* end;
    if (rank == kMostDims) Fail("a tensor has too many dimensions", name);
    dims[rank] = strtoll(dim, &end, 10);
    if (end == dim || *end != '\0' || dims[rank] < 0 || dims[rank] > INT32_MAX) {
      Fail("expected a shape such as 2,3", name);
    }
    count *= dims[rank];
    if (count > INT32_MAX) Fail("a tensor has too many values", name);
  }
  TF_Tensor* const tensor = TF_AllocateTensor(
      type, dims, rank,
      (size_t)count * (type == TF_STRING ? sizeof(TF_TString) : TF_DataTypeSize(type)));
  if (tensor == NULL) Fail("no memory", name);
  int64_t read = 0;
  for (char* value; (value = Cut(&line, '\t')) != NULL; ++read) {
    if (read < count) SetValue(type, value, TF_TensorData(tensor), read, name);
  }
  if (read != count) {
    fprintf(stderr, "serve: expected %" PRId64 " values of the input %s; received %" PRId64 "\n",
            count, name, read);
    exit(1);
  }
  return tensor;
}

static void PrintTensor(const char* name, const TF_Tensor* tensor) {
  const int rank = TF_NumDims(tensor);
  const TF_DataType type = TF_TensorType(tensor);
  const void* const data = TF_TensorData(tensor);
  printf("%s\t", name);
  for (int i = 0; i < rank; ++i) printf(i == 0 ? "%" PRId64 : ",%" PRId64, TF_Dim(tensor, i));
  for (int64_t i = 0; i < TF_TensorElementCount(tensor); ++i) {
    if (type == TF_FLOAT) {
      printf("\t%.9g", (double)((const float*)data)[i]);
    } else if (type == TF_INT64) {
      printf("\t%" PRId64, ((const int64_t*)data)[i]);
    } else if (type == TF_INT32) {
      printf("\t%" PRId32, ((const int32_t*)data)[i]);
    } else if (type == TF_STRING) {
      const TF_TString* const string = (const TF_TString*)data + i;
      putchar('\t');
      fwrite(TF_StringGetDataPointer(string), 1, TF_StringGetSize(string), stdout);
    } else {
      Fail("expected an output of float32, int32, int64 or strings", name);
    }
  }
  putchar('\n');
}

static void Delete(TF_Tensor* tensor) {
  if (TF_TensorType(tensor) == TF_STRING) {
    TF_TString* const strings = TF_TensorData(tensor);
    for (int64_t i = 0; i < TF_TensorElementCount(tensor); ++i) TF_StringDealloc(strings + i);
  }
  TF_DeleteTensor(tensor);
}

int main(int argc, char** argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: serve LIBRARY MODEL < request > answer\n");
    return 2;
  }
  TF_Status* status = TF_NewStatus();
  TF_Library* library = NULL;
  if (argv[1][0] != '\0') {
    library = TF_LoadLibrary(argv[1], status);
    Check(status, "the library of ops does not load");
  }
  TF_Graph* graph = TF_NewGraph();
  TF_SessionOptions* options = TF_NewSessionOptions();
  const char* const tags[] = {"serve"};
  TF_Session* session =
      TF_LoadSessionFromSavedModel(options, NULL, argv[2], tags, 1, graph, NULL, status);
  Check(status, "the model does not load");

  TF_Output from[kMostTensors], to[kMostTensors];
  TF_Tensor *inputs[kMostTensors], *outputs[kMostTensors];
  const char* names[kMostTensors];
  int taken = 0, given = 0;
  char* const request = ReadAll();
  char* rest = request;
  for (char* line; (line = Cut(&rest, '\n')) != NULL;) {
    if (*line == '\0') continue;
    if (taken == kMostTensors || given == kMostTensors) Fail("too many tensors", line);
    const char* const name = Cut(&line, '\t');
    const TF_Output tensor = Named(graph, name);
    if (line == NULL) {
      names[given] = name;
      outputs[given] = NULL;
      to[given++] = tensor;
    } else {
      inputs[taken] = ReadTensor(TF_OperationOutputType(tensor), name, line);
      from[taken++] = tensor;
    }
  }
  TF_SessionRun(session, NULL, from, inputs, taken, to, outputs, given, NULL, 0, NULL, status);
  Check(status, "the model does not answer");
  for (int i = 0; i < given; ++i) PrintTensor(names[i], outputs[i]);

  for (int i = 0; i < taken; ++i) Delete(inputs[i]);
  for (int i = 0; i < given; ++i) TF_DeleteTensor(outputs[i]);
  free(request);
  TF_CloseSession(session, status);
  TF_DeleteSession(session, status);
  TF_DeleteSessionOptions(options);
  TF_DeleteGraph(graph);
  if (library != NULL) TF_DeleteLibraryHandle(library);
  TF_DeleteStatus(status);
  return fflush(stdout) == 0 && !ferror(stdout) ? 0 : 1;
}
