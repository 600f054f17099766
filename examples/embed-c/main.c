/* Names a photo: embed-c BUNDLE PHOTO. Without a photo it computes an input of zeros. */
#include <inttypes.h>
#include <stdio.h>

#include <edgepack/edgepack.h>

static int fail(const edgepack_error* error) {
  fprintf(stderr, "error: %s\n", error->message);
  if (error->hint[0] != '\0') fprintf(stderr, "\nhint: %s\n", error->hint);
  return 1;
}

/* Runs what the input holds, and prints what came of it. */
static edgepack_status run(edgepack_session* session, edgepack_error* error) {
  const char* json = NULL;
  edgepack_tensor output;
  edgepack_status status = edgepack_session_run(session, error);
  if (status == EDGEPACK_OK) status = edgepack_session_output(session, 0, &output, error);
  if (status == EDGEPACK_OK) status = edgepack_session_results(session, &json, error);
  if (status != EDGEPACK_OK) return status;
  printf("%s: %s (", output.name, edgepack_dtype_name(output.dtype));
  for (int32_t i = 0; i < output.rank; ++i) {
    printf("%s%" PRId64, i == 0 ? "" : ", ", output.shape[i]);
  }
  printf(")\n%s\n", json);
  return EDGEPACK_OK;
}

int main(int argc, char** argv) {
  edgepack_error error;
  edgepack_model* model = NULL;
  edgepack_session* session = NULL;
  edgepack_status status;
  if (argc < 2) {
    fprintf(stderr, "usage: %s BUNDLE [PHOTO]\n", argv[0]);
    return 2;
  }
  if (edgepack_model_open(argv[1], &model, &error) != EDGEPACK_OK) return fail(&error);
  status = edgepack_session_open(model, 1, &session, &error);
  if (status == EDGEPACK_OK && argc > 2) {
    status = edgepack_session_set_image_file(session, argv[2], &error);
  }
  if (status == EDGEPACK_OK) status = run(session, &error);
  if (status != EDGEPACK_OK) fail(&error);
  if (session != NULL) edgepack_session_close(session, NULL);
  edgepack_model_close(model, NULL);
  return status == EDGEPACK_OK ? 0 : 1;
}
