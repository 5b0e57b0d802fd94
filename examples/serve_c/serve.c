// Serves one input of an exported model from a program in C, over TensorFlow's C API.
//
//   serve LIBRARY MODEL INPUT OUTPUT COLUMNS < ids > outputs
//
// LIBRARY: the ops that an export with ops="native" needs, or "" for one with ops="stock".
// MODEL: the folder of a version, such as served/1.
// INPUT, OUTPUT: the names of tensors, such as serve_ids:0, which `saved_model_cli show` prints.
// COLUMNS: how many ids an example has.
//
// Compile it against the TensorFlow of Python, whose folder `tf.sysconfig.get_lib()` returns:
//
//   cc -std=c99 -I$FOLDER/include serve.c $FOLDER/libtensorflow_cc.so.2
//       $FOLDER/libtensorflow_framework.so.2 -Wl,-rpath,$FOLDER -o serve
//
// It reads int64 from stdin, examples one after another, and writes float32 to stdout.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tensorflow/c/c_api.h>

static void Check(TF_Status* status, const char* what) {
  if (TF_GetCode(status) == TF_OK) return;
  fprintf(stderr, "serve: %s: %s\n", what, TF_Message(status));
  exit(1);
}

// Returns the tensor of a name such as "serve_ids:0".
static TF_Output Named(TF_Graph* graph, char* name) {
  char* colon = strchr(name, ':');
  const int index = colon == NULL ? 0 : atoi(colon + 1);
  if (colon != NULL) *colon = '\0';
  const TF_Output output = {TF_GraphOperationByName(graph, name), index};
  if (output.oper == NULL) {
    fprintf(stderr, "serve: the model has no tensor %s\n", name);
    exit(1);
  }
  return output;
}

// Reads stdin to its end. Returns its bytes, and sets how many there are.
static char* ReadAll(size_t* bytes) {
  size_t room = 1 << 16, held = 0;
  char* data = malloc(room);
  for (;;) {
    if (data == NULL) {
      fprintf(stderr, "serve: no memory for the ids\n");
      exit(1);
    }
    const size_t got = fread(data + held, 1, room - held, stdin);
    held += got;
    if (got == 0) break;
    if (held == room) data = realloc(data, room *= 2);
  }
  *bytes = held;
  return data;
}

int main(int argc, char** argv) {
  if (argc != 6 || atoi(argv[5]) < 1) {
    fprintf(stderr, "usage: serve LIBRARY MODEL INPUT OUTPUT COLUMNS < ids > outputs\n");
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

  size_t bytes = 0;
  char* ids = ReadAll(&bytes);
  const int64_t columns = atoi(argv[5]);
  const int64_t shape[] = {(int64_t)(bytes / sizeof(int64_t)) / columns, columns};
  if ((size_t)(shape[0] * columns) * sizeof(int64_t) != bytes) {
    fprintf(stderr, "serve: expected examples of %s int64; got %zu bytes\n", argv[5], bytes);
    return 1;
  }
  TF_Tensor* input = TF_AllocateTensor(TF_INT64, shape, 2, bytes);
  memcpy(TF_TensorData(input), ids, bytes);
  free(ids);

  const TF_Output from = Named(graph, argv[3]), to = Named(graph, argv[4]);
  TF_Tensor* output = NULL;
  TF_SessionRun(session, NULL, &from, &input, 1, &to, &output, 1, NULL, 0, NULL, status);
  Check(status, "the model does not answer");
  if (TF_TensorType(output) != TF_FLOAT) {
    fprintf(stderr, "serve: expected an output of float32; got type %d\n", TF_TensorType(output));
    return 1;
  }
  const size_t size = TF_TensorByteSize(output);
  const int written = fwrite(TF_TensorData(output), 1, size, stdout) == size;

  TF_DeleteTensor(input);
  TF_DeleteTensor(output);
  TF_CloseSession(session, status);
  TF_DeleteSession(session, status);
  TF_DeleteSessionOptions(options);
  TF_DeleteGraph(graph);
  if (library != NULL) TF_DeleteLibraryHandle(library);
  TF_DeleteStatus(status);
  return written && fflush(stdout) == 0 ? 0 : 1;
}
