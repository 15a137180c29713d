# frozen_string_literal: true

# Puma as it is when the close of its listener does not return: loaded once Puma is.
trace = TracePoint.new(:end) do |point|
  if point.self.name == "Puma::Server"
    trace.disable
    point.self.prepend(Module.new { def stop(*) = sleep })
  end
end
trace.enable
