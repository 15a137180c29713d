# frozen_string_literal: true

# What the specs set of Sidekiq, whatever its version.
module SidekiqVersions
  module_function

  def config
    Sidekiq.respond_to?(:default_configuration) ? Sidekiq.default_configuration : Sidekiq
  end

  def process(json)
    work = ->(*rest) { Sidekiq::BasicFetch::UnitOfWork.new("queue:default", json, *rest) }
    if Sidekiq.respond_to?(:default_configuration)
      # The pool of a processor's thread, which this is not, is the capsule's.
      capsule = Sidekiq.default_configuration.default_capsule
      capsule.instance_variable_set(:@redis_pool, nil)
      Sidekiq::Processor.new(capsule).send(:process, work.call(capsule))
    elsif Sidekiq.respond_to?(:[])
      Sidekiq::Processor.new(Sidekiq).send(:process, work.call(Sidekiq))
    else
      Sidekiq::Processor.new(nil, Sidekiq.options).send(:process, work.call)
    end
  end
end
