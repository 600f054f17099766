// One model, a thread and a session for each photo: embed-cpp BUNDLE PHOTO...
#include <exception>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include <edgepack/edgepack.hpp>

namespace {

std::string Name(const edgepack::Model& model, const std::string& photo) {
  try {
    edgepack::Session session(model);
    session.SetImageFile(photo);
    session.Run();
    return session.Results();
  } catch (const edgepack::Error& error) {
    return std::string("error: ") + error.what();
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: " << argv[0] << " BUNDLE PHOTO...\n";
    return 2;
  }
  const std::vector<std::string> photos(argv + 2, argv + argc);
  std::vector<std::string> lines(photos.size());
  try {
    const edgepack::Model model(argv[1]);
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < photos.size(); ++i) {
      threads.emplace_back([&, i] { lines[i] = Name(model, photos[i]); });
    }
    for (std::thread& thread : threads) thread.join();
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 1;
  }
  for (std::size_t i = 0; i < photos.size(); ++i)
    std::cout << photos[i] << ": " << lines[i] << "\n";
  return 0;
}
