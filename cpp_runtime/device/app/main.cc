#include <cstdio>
#include <cstring>

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--version") == 0) {
    std::printf("edgepack-device %s\n", EDGEPACK_VERSION);
    return 0;
  }
  std::fprintf(stderr, "usage: edgepack-device --version\n");
  return 2;
}
