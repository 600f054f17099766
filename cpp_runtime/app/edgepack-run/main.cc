#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "run_app.h"

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + (argc > 0 ? 1 : 0), argv + argc);
  const int code = edgepack::RunApp(words, std::cout, std::cerr);
  if (edgepack::MustEndAtOnce()) {
    std::cout.flush();
    std::_Exit(code);
  }
  return code;
}
