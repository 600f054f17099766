/* edgepack's library for programs: a bundle's model, run in this process.
 *
 *     edgepack_error error;
 *     edgepack_model* model = NULL;
 *     edgepack_session* session = NULL;
 *     if (edgepack_model_open("/opt/flowers", &model, &error) != EDGEPACK_OK ||
 *         edgepack_session_open(model, 1, &session, &error) != EDGEPACK_OK ||
 *         edgepack_session_set_image_file(session, "tulip.jpg", &error) != EDGEPACK_OK ||
 *         edgepack_session_run(session, &error) != EDGEPACK_OK) {
 *       fprintf(stderr, "%s\n", error.message);
 *     }
 *
 * Every function that can fail returns a status and, if `error` is not NULL, writes what went wrong
 * to it. What a failed function was to write is left as it was.
 *
 * Handles are names, not addresses: one that was closed, is of another kind, or never was, is
 * answered with EDGEPACK_INVALID_HANDLE. Any thread may use any handle. A session is for one thread
 * at a time: another one is answered with EDGEPACK_BUSY. Sessions of one model share its weights,
 * which are mapped once, and run beside each other.
 *
 * Paths and strings are UTF-8 and end with a zero byte. Within a version of EDGEPACK_API nothing
 * that is declared here changes; what is new is added. */
#ifndef EDGEPACK_EDGEPACK_H
#define EDGEPACK_EDGEPACK_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EDGEPACK_API 2

#ifndef EDGEPACK_EXPORT
#define EDGEPACK_EXPORT
#endif

/* What a function returns; 0 if all went well. */
typedef int32_t edgepack_status;
enum {
  EDGEPACK_OK = 0,
  EDGEPACK_INVALID_ARGUMENT = 1, /* NULL, a number out of range, a buffer of another size */
  EDGEPACK_INVALID_HANDLE = 2,   /* NULL, closed, or of another kind */
  EDGEPACK_BUSY = 3,             /* another thread is using the session */
  EDGEPACK_BAD_BUNDLE = 4,       /* a file that is missing, damaged or of another machine */
  EDGEPACK_BAD_IMAGE = 5,        /* no image, or of a kind or size the preprocessing refuses */
  EDGEPACK_WRONG_INPUT = 6,      /* the model does not take what it was given */
  EDGEPACK_NO_MEMORY = 7,        /* no memory, or no thread, is left */
  EDGEPACK_KERNEL_FAILED = 8,    /* the model's own code said so */
  EDGEPACK_INTERNAL = 9,         /* a bug in edgepack: please report it */
  EDGEPACK_BAD_POSITION = 10,    /* an input points at what is not there; the session goes on */
  EDGEPACK_GPU_FAILED = 11,      /* the GPU or its driver; the next run may go well */
  EDGEPACK_GPU_LOST = 12         /* the GPU hangs, or failed in three runs: start a new process */
};

/* What went wrong: a sentence, and what to do next (or ""). Texts that are too long are cut. */
typedef struct edgepack_error {
  edgepack_status status;
  char message[1024];
  char hint[508];
} edgepack_error;

/* Element types; edgepack_dtype_name gives numpy's names. */
typedef int32_t edgepack_dtype;
enum {
  EDGEPACK_BOOL = 0,
  EDGEPACK_INT8 = 1,
  EDGEPACK_UINT8 = 2,
  EDGEPACK_INT16 = 3,
  EDGEPACK_UINT16 = 4,
  EDGEPACK_INT32 = 5,
  EDGEPACK_UINT32 = 6,
  EDGEPACK_INT64 = 7,
  EDGEPACK_UINT64 = 8,
  EDGEPACK_FLOAT16 = 9,
  EDGEPACK_FLOAT32 = 10,
  EDGEPACK_FLOAT64 = 11
};

/* How the pixels of an image lie: 8 bits per channel, row by row. */
typedef int32_t edgepack_pixels;
enum { EDGEPACK_RGB = 0, EDGEPACK_BGR = 1, EDGEPACK_GRAY = 2 };

typedef struct edgepack_model edgepack_model;
typedef struct edgepack_session edgepack_session;

typedef struct edgepack_model_info {
  const char* name;      /* lives as long as the model */
  uint64_t params_bytes; /* weights: mapped once for all sessions */
  uint64_t arena_bytes;  /* what each session takes on top */
  int32_t inputs;
  int32_t outputs;
  int32_t labels; /* how many classes have a name */
  int32_t states; /* how many inputs keep an output: see edgepack_session_reset */
} edgepack_model_info;

/* A packed tensor in C order. Name and shape live as long as the handle they were asked of, and so
 * does the data. */
typedef struct edgepack_tensor {
  const char* name;
  const int64_t* shape; /* `rank` numbers */
  const int64_t*
      bound;  /* the largest shape of an output whose shape depends on the data, or NULL */
  void* data; /* NULL if it was asked of a model */
  uint64_t bytes;
  edgepack_dtype dtype;
  int32_t rank;
} edgepack_tensor;

/* The EDGEPACK_API of the library: at least that of the header a program was compiled with. */
EDGEPACK_EXPORT uint32_t edgepack_api(void);
/* The version of edgepack that built the library, e.g. "0.1.0". */
EDGEPACK_EXPORT const char* edgepack_version(void);
/* "float32"; NULL if there is no such type. */
EDGEPACK_EXPORT const char* edgepack_dtype_name(edgepack_dtype dtype);
/* Bytes of one element; 0 if there is no such type. */
EDGEPACK_EXPORT size_t edgepack_dtype_size(edgepack_dtype dtype);

/* Loads the model of the bundle in folder `bundle`: what `edgepack package` writes, or a release on
 * a device (`current`). Its hashes are not checked: whoever puts it there does that. */
EDGEPACK_EXPORT edgepack_status edgepack_model_open(const char* bundle, edgepack_model** model,
                                                    edgepack_error* error);
/* Gives a model back. Its sessions stay as they are, and the weights until they are closed, too. */
EDGEPACK_EXPORT edgepack_status edgepack_model_close(edgepack_model* model, edgepack_error* error);
EDGEPACK_EXPORT edgepack_status edgepack_model_get_info(edgepack_model* model,
                                                        edgepack_model_info* info,
                                                        edgepack_error* error);
/* Inputs and outputs by position, without data. */
EDGEPACK_EXPORT edgepack_status edgepack_model_input(edgepack_model* model, int32_t index,
                                                     edgepack_tensor* tensor,
                                                     edgepack_error* error);
EDGEPACK_EXPORT edgepack_status edgepack_model_output(edgepack_model* model, int32_t index,
                                                      edgepack_tensor* tensor,
                                                      edgepack_error* error);
/* The name of class `index`; lives as long as the model. */
EDGEPACK_EXPORT edgepack_status edgepack_model_label(edgepack_model* model, int32_t index,
                                                     const char** label, edgepack_error* error);

/* Memory to run a model in. `threads` share the work of a run, the calling thread is the first of
 * them: 1 to 256, or 0 for one per core of the fastest cluster. */
EDGEPACK_EXPORT edgepack_status edgepack_session_open(edgepack_model* model, int32_t threads,
                                                      edgepack_session** session,
                                                      edgepack_error* error);
/* Gives a session back; its memory goes when a run on another thread has ended. */
EDGEPACK_EXPORT edgepack_status edgepack_session_close(edgepack_session* session,
                                                       edgepack_error* error);

/* Inputs and outputs by position, in place: write into an input's data, read an output's. The
 * session's memory is short: a run writes over its inputs, and outputs may lie where inputs were.
 * So write all inputs before each run, and read the outputs before the next input is written. The
 * address of the data never changes; the shape of an output that has a bound does with each run. */
EDGEPACK_EXPORT edgepack_status edgepack_session_input(edgepack_session* session, int32_t index,
                                                       edgepack_tensor* tensor,
                                                       edgepack_error* error);
EDGEPACK_EXPORT edgepack_status edgepack_session_output(edgepack_session* session, int32_t index,
                                                        edgepack_tensor* tensor,
                                                        edgepack_error* error);
/* Copies a packed tensor into an input; `bytes` are the input's. */
EDGEPACK_EXPORT edgepack_status edgepack_session_set_input(edgepack_session* session, int32_t index,
                                                           const void* data, uint64_t bytes,
                                                           edgepack_error* error);
/* Copies an output to `data`; `bytes` are the output's, as it is now. */
EDGEPACK_EXPORT edgepack_status edgepack_session_get_output(edgepack_session* session,
                                                            int32_t index, void* data,
                                                            uint64_t bytes, edgepack_error* error);

/* Makes the input of a JPEG or PNG image, by the bundle's preprocessing: a file, its bytes, or
 * pixels. Rows of pixels are `stride` bytes apart, or packed if that is 0. */
EDGEPACK_EXPORT edgepack_status edgepack_session_set_image_file(edgepack_session* session,
                                                                const char* path,
                                                                edgepack_error* error);
EDGEPACK_EXPORT edgepack_status edgepack_session_set_image(edgepack_session* session,
                                                           const void* data, uint64_t bytes,
                                                           edgepack_error* error);
EDGEPACK_EXPORT edgepack_status edgepack_session_set_pixels(edgepack_session* session,
                                                            const void* pixels, int32_t height,
                                                            int32_t width, uint64_t stride,
                                                            edgepack_pixels format,
                                                            edgepack_error* error);

/* Computes the outputs of the inputs that were written. If the bundle has stages, they look at the
 * boxes in the image that was set: its results are all that is kept, there are no outputs to read,
 * and a run without an image is answered with EDGEPACK_WRONG_INPUT. */
EDGEPACK_EXPORT edgepack_status edgepack_session_run(edgepack_session* session,
                                                     edgepack_error* error);

/* An input that is a state keeps what the last run left in its output, the same memory: it need not
 * be written. Before the first run it is what the model begins with, zero unless the
 * model says else. This makes all states so again, and ends all tracks: a new sequence. */
EDGEPACK_EXPORT edgepack_status edgepack_session_reset(edgepack_session* session,
                                                       edgepack_error* error);

/* From the next run on, each box in the results has the number of its track ("track"): an object
 * keeps its number from image to image, as with `edgepack-run --track`. An object that is missed in
 * more than `most_missed` runs in a row (0 to 10,000) gets a new number; numbers begin at 1, and a
 * session gives none twice. Each run has to be of the next image: edgepack_session_reset ends all
 * tracks, and states. Another call changes `most_missed` alone. Since EDGEPACK_API 2. */
EDGEPACK_EXPORT edgepack_status edgepack_session_track(edgepack_session* session,
                                                       int32_t most_missed, edgepack_error* error);

/* What the outputs say by the bundle's postprocessing, as JSON: the keys "top", "boxes",
 * "keypoints", "tensors", "areas", "text" and "stages" of `edgepack-run --json`. Coordinates are
 * those of the image that was set last, of the model's input if there was none or
 * edgepack_session_set_input came after it. The text lives until the next call of this function for
 * the session, or its end.
 */
EDGEPACK_EXPORT edgepack_status edgepack_session_results(edgepack_session* session,
                                                         const char** json, edgepack_error* error);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* EDGEPACK_EDGEPACK_H */
