// A CUDA device guard and CUDA hooks that do nothing, for a torch built without CUDA. With them, tensors that have a
// shape and a device but no data can say "cuda" all the way: allocation, autograd, streams. Loaded before torch itself.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/Device.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

constexpr c10::DeviceIndex kCards = 1;

c10::DeviceIndex known(c10::DeviceIndex index) { return index < 0 ? 0 : index; }
c10::Device cuda(c10::DeviceIndex index) { return c10::Device(c10::DeviceType::CUDA, known(index)); }

struct NoCardGuard final : public c10::impl::DeviceGuardImplInterface {
  static thread_local c10::DeviceIndex current;
  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    auto before = current;
    current = known(device.index());
    return cuda(before);
  }
  c10::Device getDevice() const override { return cuda(current); }
  void setDevice(c10::Device device) const override { current = known(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current = known(device.index()); }
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, cuda(device.index())); }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream getNewStream(c10::Device device, int) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return kCards; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
};
thread_local c10::DeviceIndex NoCardGuard::current = 0;

struct NoCardHooks : public at::CUDAHooksInterface {
  NoCardHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasCuDNN() const override { return true; }
  c10::DeviceIndex current_device() const override { return 0; }
  c10::DeviceIndex deviceCount() const override { return kCards; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  int getNumGPUs() const override { return kCards; }
  bool isPinnedPtr(const void*) const override { return false; }
  c10::Device getDeviceFromPtr(void*) const override { return cuda(0); }
  void deviceSynchronize(c10::DeviceIndex) const override {}
};

}  // namespace

namespace c10::impl {
C10_REGISTER_GUARD_IMPL(CUDA, NoCardGuard)
}
namespace at {
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, ::NoCardHooks)
}
