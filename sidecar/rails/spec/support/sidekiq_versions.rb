# frozen_string_literal: true

# What the specs set of Sidekiq, whatever its version.
module SidekiqVersions
  # What times in jobs are: seconds with a fraction, or milliseconds since 8.
  TIME = Gem::Version.new(Sidekiq::VERSION) >= Gem::Version.new("8") ? Integer : Float

  module_function

  def seconds(time)
    time.is_a?(Integer) ? time / 1000.0 : time
  end

  # The arguments of what runs, as Sidekiq's API tells it.
  def running
    Sidekiq::Workers.new.map { |_, _, work| work.respond_to?(:job) ? work.job.args : work["payload"]["args"] }
  end

  def config
    Sidekiq.respond_to?(:default_configuration) ? Sidekiq.default_configuration : Sidekiq
  end

  def process(json)
    work = ->(*rest) { Sidekiq::BasicFetch::UnitOfWork.new("queue:default", json, *rest) }
    if Sidekiq.respond_to?(:default_configuration)
      # The pool of a processor's thread, which this is not, is the capsule's.
      capsule = Sidekiq.default_configuration.default_capsule
      %i[@redis @redis_pool].each { |pool| capsule.instance_variable_set(pool, nil) }
      Sidekiq::Processor.new(capsule).send(:process, work.call(capsule))
    elsif Sidekiq.respond_to?(:[])
      Sidekiq::Processor.new(Sidekiq).send(:process, work.call(Sidekiq))
    else
      Sidekiq::Processor.new(nil, Sidekiq.options).send(:process, work.call)
    end
  end
end
