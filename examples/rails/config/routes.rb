# frozen_string_literal: true

Rails.application.routes.draw do
  # Rails 7.1 has this by itself: whether the web server answers.
  get "/up", to: ->(_env) { [200, { "content-type" => "text/plain" }, ["up"]] }
  post "/enqueue/:job", to: "enqueue#create"
  # Protect it in an application of yours.
  mount Sidekiq::Web => "/sidekiq"
end
