/* Reads rows of embeddings that sok-embed has written: one file of rows, or the tables of an
 * exported model with the deltas that a training publishes. For C99 and C++11.
 *
 * docs/guide/serving-c.md has programs, docs/reference/serving-c.md says more of each function.
 *
 * Functions that return int return SOK_ROWS_OK or the kind of an error, whose text sok_rows_error
 * returns; after an error nothing has been written to a handle. Paths and names are UTF-8. Keys are
 * 64 bits, signed or not: the same bits are the same key.
 *
 * Any number of threads may call any functions at once, with the same handles too, but for the
 * close functions: a handle that is closed must not be in use, and is not used afterwards.
 *
 * Files are mapped: an open file of rows must not be changed or cut, which would end the process.
 * Replace it by another file, which takes its name.
 */
#ifndef SOK_ROWS_H_
#define SOK_ROWS_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface. Within one version functions, fields at the end of structs, and
 * kinds of errors may be added, and nothing is changed or removed. */
#define SOK_ROWS_ABI 1

/* Returns the version that the library has. */
uint32_t sok_rows_abi(void);

/* Kinds of errors. */
enum {
  SOK_ROWS_OK = 0,
  SOK_ROWS_INVALID_ARGUMENT = 1, /* never right, such as a null pointer or a later format */
  SOK_ROWS_NOT_FOUND = 2,        /* a file, a delta or a table that is not there */
  SOK_ROWS_PERMISSION_DENIED = 3,
  SOK_ROWS_EXHAUSTED = 4, /* no memory, no room on the disk, too many open files */
  SOK_ROWS_CORRUPT = 5,   /* a file is damaged or incomplete */
  SOK_ROWS_INTERNAL = 6   /* anything else, such as a device that fails */
};

/* Returns the text of the last error of the calling thread, cut after 4,095 bytes; "" if there was
 * none. It stays until another function of this thread fails. */
const char* sok_rows_error(void);

/* The rows of one table. They never change. */
typedef struct sok_rows sok_rows;

/* Describes a table. Texts live as long as the handle that they are of. */
typedef struct sok_rows_info {
  size_t size;         /* set this to sizeof(sok_rows_info): no more is written */
  uint64_t rows;       /* of the file; deltas are not counted */
  uint64_t file_bytes; /* the length of the file */
  const char* path;    /* of the file */
  const char* name;    /* of the table */
  const char* dtype;   /* of the file: "float32", "float16", "int8" or "int4" */
  uint32_t dim;        /* the length of a row */
  uint32_t layers;     /* files of changes over the file, merged from deltas; at most 4 */
} sok_rows_info;

/* Opens a file of rows. It takes the same time at every size. */
int sok_rows_open(const char* path, sok_rows** rows);

/* Closes a file that sok_rows_open has opened. Null does nothing. */
void sok_rows_close(sok_rows* rows);

int sok_rows_get_info(const sok_rows* rows, sok_rows_info* info);

/* Writes the rows of n keys to out, [n, dim]. A key without a row gets zeros, or the vector that
 * training would start it with, as the file says. After an error the content of out is useless. */
int sok_rows_lookup(const sok_rows* rows, const uint64_t* keys, size_t n, float* out);

/* Writes 1 for a key with a row and 0 for one without to out, [n]. */
int sok_rows_contains(const sok_rows* rows, const uint64_t* keys, size_t n, uint8_t* out);

/* Reads the whole file: SOK_ROWS_CORRUPT for a wrong checksum and for a key out of its place. Files
 * of deltas have been read so when they were applied. */
int sok_rows_verify(const sok_rows* rows);

/* The tables of an exported model, which move on from version to version. */
typedef struct sok_rows_export sok_rows_export;

/* All tables at one version. It never changes. */
typedef struct sok_rows_version sok_rows_version;

/* Describes a version. */
typedef struct sok_rows_version_info {
  size_t size;     /* set this to sizeof(sok_rows_version_info): no more is written */
  uint64_t delta;  /* the number of the last delta; 0: the export itself */
  uint64_t step;   /* the iterations of the optimizer at that delta; 0 for the export itself */
  uint64_t tables; /* how many tables there are */
} sok_rows_version_info;

/* Opens the folder of a version that sok_embed.serving.export has written with ops="native", such
 * as "served/1", as it was exported. */
int sok_rows_open_export(const char* folder, sok_rows_export** exported);

/* Closes it. Versions of it stay open. Null does nothing. */
void sok_rows_close_export(sok_rows_export* exported);

/* For sok_rows_update: the newest delta that CURRENT.json names. */
#define SOK_ROWS_NEWEST UINT64_MAX

/* Applies the deltas after the present one up to the one of a number. All of each is checked before
 * it counts. At an error the export is at the last delta that could be applied, and may be updated
 * again. Lookups go on meanwhile, and versions that are open do not change. */
int sok_rows_update(sok_rows_export* exported, uint64_t delta);

/* Writes the number of the newest delta that CURRENT.json names; 0: there is none. */
int sok_rows_newest(const sok_rows_export* exported, uint64_t* delta);

/* Opens the present version. It reads no file, and waits for no update. */
int sok_rows_open_version(const sok_rows_export* exported, sok_rows_version** version);

/* Closes a version, after which its tables are not used any more. Null does nothing. */
void sok_rows_close_version(sok_rows_version* version);

int sok_rows_get_version_info(const sok_rows_version* version, sok_rows_version_info* info);

/* Finds a table by the name of its file in the folder assets of the export, such as
 * "items.safetensors". It belongs to the version, and is not closed. */
int sok_rows_table(const sok_rows_version* version, const char* file, const sok_rows** rows);

/* The same by its number, in the order of the names of the files, from 0 on. */
int sok_rows_table_at(const sok_rows_version* version, size_t number, const sok_rows** rows);

#ifdef __cplusplus
}
#endif

#endif /* SOK_ROWS_H_ */
